"""Decoding a split once: ``python -m fairseq_plugins.cli.generate_split --help``."""

import argparse

from fairseq_plugins.command_line import Command
from fairseq_plugins.evaluation.scored_text import DECODING_HELP, add_decoding, read_decoding


class GenerateSplit(Command):
    """Decodes a split, unless it is decoded."""

    name = "generate_split"
    summary = "Decode a split by fairseq-generate, unless that was done with the same models, data and flags."
    description = f"Writes OUT/generate.txt, with subwords joined; log: OUT/generate.log.\n\n{DECODING_HELP}"
    forwards_to = "fairseq-generate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_decoding(parser, required=True)

    def run(self, args: argparse.Namespace) -> None:
        decoding = read_decoding(args)
        decoding.check()
        decoding.run()


if __name__ == "__main__":
    GenerateSplit().main()
