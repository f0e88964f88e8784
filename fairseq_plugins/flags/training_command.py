"""What commands that train have in common."""

import argparse
import shlex
from typing import List

from fairseq_plugins.flags.command import Command


class TrainingCommand(Command):
    """A command that hands arguments which it does not declare to ``fairseq-train``; they are ``args.more``.

    A ``--`` before them, which other commands ask for, may stand or be left out.
    """

    def get_parser(self) -> argparse.ArgumentParser:
        parser = super().get_parser()
        parser.allow_abbrev = False  # a flag of fairseq-train may begin like one of the command's
        return parser

    def _parse(self, parser: argparse.ArgumentParser, given: List[str]) -> argparse.Namespace:
        own = [word for word in given if word != "--"]
        args, args.more = parser.parse_known_args(own)
        if args.more and not args.more[0].startswith("-"):
            parser.error(f"{args.more[0]} is neither a flag nor the value of one")
        for flag, value in zip(own, own[1:]):
            is_foreign = flag in args.more and flag.startswith("--") and "=" not in flag
            if is_foreign and not value.startswith("-") and value not in args.more:  # it was taken for another word
                parser.error(f"{flag} {value}: flags of fairseq-train come after all other words")
        args.command_line = shlex.join([*self.program.split(), *given])
        return args
