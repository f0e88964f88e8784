"""What every command of this package is: ``python -m fairseq_plugins.cli.NAME``."""

import argparse
import codecs
import io
import logging
import os
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import ClassVar, Iterator, List, NoReturn, Optional, Sequence, Tuple

from fairseq_plugins.flags.refusal import is_refusal

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that was interrupted from the keyboard, as a shell tells it."""

UNREAD = 128 + signal.SIGPIPE
"""Exit status of a command whose reader has gone, as a shell tells it."""


_ESCAPED = "escaped_as_in_json"
"""How the standard output writes letters that its encoding lacks."""


def _escape(error: UnicodeError) -> Tuple[str, int]:
    r"""Letters as ``\uXXXX``, which is JSON as well."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4)), error.end


codecs.register_error(_ESCAPED, _escape)


def _discard_output() -> None:
    """Let go what was printed and not yet written, which would fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _discard_unwritable_output() -> str:
    """Write what was printed; where that fails, such as on a full disk, let it go and return what to tell of it."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
        return ": the output is cut short"
    return ""


class ProgramFailed(Exception):
    """A program that a command ran has failed; the text is what it told last."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that refuses wrong arguments with one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """End with the message; line breaks in it, such as those of a file's name, become blanks."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.splitlines())}\n")


@contextmanager
def ended_in_a_line(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the process as :meth:`Command.main` says where the block fails."""
    try:
        _check_streams()
        try:
            yield
        except SystemExit:  # after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        sys.exit(UNREAD)
    except (ValueError, OSError) as error:
        if not (isinstance(error, (OSError, UnicodeError)) or is_refusal(error)):
            raise
        parser.exit(2, f"{parser.prog}: error: {_in_a_line(error)}{_discard_unwritable_output()}\n")
    except ProgramFailed as failure:
        parser.exit(1, f"{failure}\n")
    except KeyboardInterrupt:
        parser.exit(INTERRUPTED, f"{parser.prog}: interrupted\n")


def _check_streams() -> None:
    """Refuse an output that was closed, as by ``>&-``; what else is closed is empty, or goes nowhere.

    Otherwise the next file that is opened would take its place, and what is printed.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if is_closed:
        raise ValueError("the standard output is closed: let it go to a file, or to /dev/null")


class Command(ABC):
    """A command: its arguments, and what it does.

    A subclass stands in a module of ``fairseq_plugins/cli`` that has its name and ends with
    ``if __name__ == "__main__": ItsClass().main()``. The order of arguments is the host's:
    ``COMMAND DATA --path CKPT...``.

    Attributes:
        name: of the module.
        summary: one line, for the list of all commands.
        description: for ``--help``, beneath the summary.
        forwards_to: program that takes the flags after ``--``; they are ``args.forwarded``. Without one, ``--`` is
            argparse's.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str] = ""
    forwards_to: ClassVar[str] = ""

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Do the work and print the result.

        Args:
            args: the values of the arguments; ``args.command_line`` is what was typed, ``args.forwarded`` the flags
                after ``--``.

        Raises:
            ValueError, OSError: for what the user gave wrongly; the text is the whole message. A ValueError that is
                :func:`no refusal <fairseq_plugins.flags.refusal.is_refusal>` is a fault.
            ProgramFailed: if a program that the command ran did not end well.
        """

    @property
    def program(self) -> str:
        """How the command is called."""
        return f"python -m fairseq_plugins.cli.{self.name}"

    def get_parser(self) -> argparse.ArgumentParser:
        """The parser of the command line."""
        parser = OneLineParser(
            prog=self.program,
            description="\n\n".join(filter(None, [self.summary, self.description])),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_arguments(parser)
        return parser

    def main(self, arguments: Optional[Sequence[str]] = None) -> None:
        """Run the command with the arguments of the command line, or with those given.

        A user's mistake ends with one line and exit status 2, a program that fails with what it told and 1, and an
        interrupt from the keyboard with one line and 130. A fault of the package keeps its traceback. Where nobody
        reads the output any more, such as after ``| head -1``, it ends quietly with 141.
        """
        logging.getLogger().setLevel(logging.WARNING)  # what the host notes while importing and loading
        if isinstance(sys.stdout, io.TextIOWrapper):  # text may have letters that the terminal has not
            sys.stdout.reconfigure(errors=_ESCAPED)
        given = [str(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
        parser = self.get_parser()
        with ended_in_a_line(parser):
            self.run(self._parse(parser, given))

    def _parse(self, parser: argparse.ArgumentParser, given: List[str]) -> argparse.Namespace:
        """The values of the arguments; a subclass may take flags that it does not declare."""
        own, forwarded = self._split(given)
        args, unknown = self._read_own(parser, own)
        if unknown and self.forwards_to and unknown[0].startswith("-"):
            parser.error(f"{unknown[0]}: flags of {self.forwards_to} come after --")
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        args.forwarded = forwarded
        args.command_line = shlex.join([*self.program.split(), *given])
        return args

    def _read_own(self, parser: argparse.ArgumentParser, own: List[str]) -> Tuple[argparse.Namespace, List[str]]:
        """The values of the command's own arguments, and what it does not know."""
        return parser.parse_known_args(own)

    def _split(self, given: List[str]) -> Tuple[List[str], List[str]]:
        """The command's own arguments, and those after ``--`` where another program takes them."""
        if not self.forwards_to or "--" not in given:
            return given, []
        place = given.index("--")
        return given[:place], given[place + 1 :]


def _in_a_line(error: Exception) -> str:
    """What an error tells; one of the operating system names the file first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).splitlines())
