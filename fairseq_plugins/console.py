"""How commands run: their command line, errors in one line, exit statuses. Importing it takes no time."""

import argparse
import codecs
import io
import os
import shlex
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, List, NoReturn, Optional, Sequence, Tuple

from tqdm import tqdm

USER_ERROR = 2
"""Exit status of a command after a user error, as in argparse."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command after an interrupt from the keyboard, as in a shell."""

UNREAD = 128 + signal.SIGPIPE
"""Exit status of a command whose output nobody reads any more, as in a shell."""

_ESCAPED = "escaped_as_in_json"
"""Name of the error handler that writes characters which the encoding of the standard output lacks."""


def _escape(error: UnicodeError) -> Tuple[str, int]:
    r"""Write characters as escapes such as ``\u20ac``, which are valid JSON."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


codecs.register_error(_ESCAPED, _escape)


def discard_output() -> None:
    """Discard buffered output, whose flush would fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _discard_unwritable_output() -> str:
    """Flush the output. If that fails, such as on a full disk, discard it and return a phrase for the message."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
        return ": the output is cut short"
    return ""


def progress(items: Optional[Iterable[Any]] = None, **options: Any) -> "tqdm[Any]":
    """A bar on a terminal for work of more than two seconds. Bars within another one do not stay."""
    return tqdm(items, disable=None, delay=2, leave=None, **options)


SECONDS_BETWEEN_MESSAGES = 10


def progress_bar(title: str, *, unit: str) -> "tqdm[Any]":
    """A bar beside results that are printed one by one: every few seconds in a file, and none on the same terminal."""
    is_terminal = sys.stderr.isatty()
    interval = 0.1 if is_terminal else SECONDS_BETWEEN_MESSAGES
    return tqdm(
        desc=title,
        unit=unit,
        disable=is_terminal and sys.stdout.isatty(),
        mininterval=interval,
        delay=0 if is_terminal else interval,
    )


class ProgramFailed(Exception):
    """A program that a command ran has failed; the text is its last output."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports wrong arguments in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        """End with the message. Line breaks in it, such as in the name of a file, become blanks."""
        self.exit(USER_ERROR, f"{self.prog}: error: {' '.join(message.splitlines())}\n")


@contextmanager
def ended_in_a_line(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the process after an error in the block.

    A user error ends it with one line and exit status 2, a failed program with its last output and 1, an interrupt from
    the keyboard with one line and 130. A fault of the package keeps its traceback. If nobody reads the output any more,
    such as after ``| head -1``, the command ends quietly with 141.
    """
    try:
        _check_streams(parser)
        try:
            yield
        except SystemExit:  # after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        sys.exit(UNREAD)
    except (ValueError, OSError) as error:
        from fairseq_plugins.options import UserError  # imports torch and fairseq

        if not isinstance(error, (UserError, OSError, UnicodeError)):
            raise
        parser.exit(USER_ERROR, f"{parser.prog}: error: {message_of(error)}{_discard_unwritable_output()}\n")
    except ProgramFailed as failure:
        parser.exit(1, f"{failure}\n")
    except KeyboardInterrupt:
        parser.exit(INTERRUPTED, f"{parser.prog}: interrupted\n")


def message_of(error: BaseException) -> str:
    """The message of an error in one line. An error of the operating system names the file first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).splitlines())


def _check_streams(parser: argparse.ArgumentParser) -> None:
    """Refuse a closed standard output, as after ``>&-``, and replace other closed streams by empty ones.

    The next file that is opened would take the place of a closed stream, and receive what is printed.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if is_closed:
        parser.error("the standard output is closed: redirect it to a file or to /dev/null")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its arguments and its work. The order of arguments is fairseq's: ``COMMAND DATA --path CKPT...``.

    Attributes:
        add_arguments: declares the arguments.
        run: does the work and prints the result. It gets the values of the arguments, ``command_line``, and
            ``forwarded`` or ``more`` (below). It raises UserError or OSError with the whole message, or ProgramFailed
            if a program that the command ran has failed. All other errors are faults of the package.
        description: for ``--help``, below the summary.
        example: arguments of an example for ``--help``, without the name of the command.
        forwards_to: program that gets the flags after ``--``, which are ``args.forwarded``. If empty, argparse handles
            ``--``.
        passes_on: whether unknown arguments go to ``fairseq-train``, as ``args.more``. A ``--`` before them is
            optional.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    description: str = ""
    example: str = ""
    forwards_to: str = ""
    passes_on: bool = False

    def get_parser(self, program: str, summary: str = "") -> argparse.ArgumentParser:
        """The parser of the command line.

        Args:
            program: name of the command, such as ``fairseq-plugins lm eval``.
            summary: one line for ``--help``.
        """
        parser = OneLineParser(
            prog=program,
            description="\n\n".join(filter(None, [summary, self.description])),
            epilog=f"example:\n  {program} {self.example}" if self.example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=not self.passes_on,  # a flag of fairseq-train may begin like one of the command's
        )
        self.add_arguments(parser)
        _add_user_dir(parser)
        return parser

    def main(self, arguments: Sequence[str], *, program: str, summary: str = "") -> None:
        """Run the command. The caller ends the process after errors, by :func:`ended_in_a_line`."""
        if isinstance(sys.stdout, io.TextIOWrapper):  # text may have characters that the terminal lacks
            sys.stdout.reconfigure(errors=_ESCAPED)
        self._import_parts(program, arguments)
        parser = self.get_parser(program, summary)
        args = self.parse(parser, arguments)
        args.command_line = shlex.join([*program.split(), *arguments])
        self.run(args)

    def _import_parts(self, program: str, given: Sequence[str]) -> None:
        """Import the folder of ``--user-dir`` before the other arguments are declared: they may depend on it."""
        early = OneLineParser(prog=program, add_help=False, allow_abbrev=not self.passes_on)
        _add_user_dir(early)
        folder: Optional[str] = early.parse_known_args(self._split(given)[0])[0].user_dir
        if folder is not None:
            from fairseq_plugins.own_parts import import_folder  # imports torch and fairseq

            import_folder(folder)

    def _split(self, given: Sequence[str]) -> Tuple[List[str], List[str]]:
        """The command's own arguments, and those that it forwards."""
        if self.passes_on:
            return [word for word in given if word != "--"], []
        end = given.index("--") if self.forwards_to and "--" in given else len(given)
        return [*given[:end]], [*given[end + 1 :]]

    def parse(self, parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments."""
        own, forwarded = self._split(given)
        if self.passes_on:
            return _parse_training(parser, own)
        args, unknown = parser.parse_known_args(own)
        if unknown and self.forwards_to and unknown[0].startswith("--"):
            parser.error(f"{unknown[0]}: flags of {self.forwards_to} come after --{_nearest(unknown[0], parser)}")
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest(unknown[0], parser)}")
        args.forwarded = forwarded
        return args


def _add_user_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user-dir", metavar="DIR", help="folder with parts and recipes of your own, which __init__.py imports"
    )


def _parse_training(parser: argparse.ArgumentParser, given: List[str]) -> argparse.Namespace:
    args, args.more = parser.parse_known_args(given)
    if args.more and not args.more[0].startswith("-"):
        parser.error(f"{args.more[0]} is neither a flag nor the value of one")
    for flag, value in zip(given, given[1:]):
        is_foreign = flag in args.more and flag.startswith("--") and "=" not in flag
        if is_foreign and not value.startswith("-") and value not in args.more:  # argparse took it for a positional
            parser.error(f"{flag} {value}: flags of fairseq-train come after all other words")
    return args


def _nearest(flag: str, parser: argparse.ArgumentParser) -> str:
    """A phrase that names the flags with the most similar names, if there are any, or the flag that takes files."""
    if not flag.startswith("--") and "--input" in parser._option_string_actions:
        return f" (did you mean --input {flag}?)"
    return did_you_mean(flag, [name for name in parser._option_string_actions if name.startswith("--")])


def did_you_mean(word: str, choices: Sequence[str]) -> str:
    """A phrase that names the choices most similar to a mistyped word or flag; empty if none is similar."""
    from difflib import get_close_matches

    names = {choice.lstrip("-"): choice for choice in choices}  # equal dashes are no similarity
    found = [names[name] for name in get_close_matches(word.lstrip("-"), names)]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
