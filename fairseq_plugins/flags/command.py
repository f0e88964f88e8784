"""What every command of this package is: ``python -m fairseq_plugins.cli.NAME``."""

import argparse
import logging
import sys
from abc import ABC, abstractmethod
from typing import ClassVar, List, Optional, Sequence


class Command(ABC):
    """A command: its arguments, and what it does.

    A subclass stands in a module of ``fairseq_plugins/cli`` that has its name and ends with
    ``if __name__ == "__main__": ItsClass().main()``.

    Attributes:
        name: of the module.
        summary: one line, for the list of all commands.
        description: for ``--help``, beneath the summary.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str] = ""

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Do the work and print the result.

        Raises:
            ValueError, OSError: for what the user gave wrongly; the text is the whole message.
        """

    def get_parser(self) -> argparse.ArgumentParser:
        """The parser of the command line."""
        parser = argparse.ArgumentParser(
            prog=f"python -m fairseq_plugins.cli.{self.name}",
            description="\n\n".join(filter(None, [self.summary, self.description])),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_arguments(parser)
        return parser

    def main(self, arguments: Optional[Sequence[str]] = None) -> None:
        """Run the command with the arguments of the command line, or with those given.

        A user's mistake ends with one line and exit status 2.
        """
        logging.getLogger().setLevel(logging.WARNING)  # what the host notes while importing and loading
        parser = self.get_parser()
        args = self._parse(parser, sys.argv[1:] if arguments is None else list(arguments))
        try:
            self.run(args)
        except (ValueError, OSError) as error:
            parser.exit(2, f"{parser.prog}: error: {error}\n")

    def _parse(self, parser: argparse.ArgumentParser, given: List[str]) -> argparse.Namespace:
        return parser.parse_args(given)
