"""Base of all commands ``python -m fairseq_plugins.cli.NAME``, and the arguments that several of them share."""

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
from pathlib import Path
from typing import Any, ClassVar, Iterator, List, Literal, NoReturn, Optional, Sequence, Tuple, Union

import torch

from fairseq_plugins.options import (
    UserError,
    checkpoint_of,
    data_folder,
    given_path,
    listed_paths,
    output_file,
    output_folder,
    picture_file,
)

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command after an interrupt from the keyboard, as in a shell."""

UNREAD = 128 + signal.SIGPIPE
"""Exit status of a command whose output nobody reads any more, as in a shell."""

_ESCAPED = "escaped_as_in_json"
"""Name of the error handler that writes characters which the encoding of the standard output lacks."""


def _escape(error: UnicodeError) -> Tuple[str, int]:
    r"""Write characters as ``\uXXXX``, which is valid JSON."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4)), error.end


codecs.register_error(_ESCAPED, _escape)


def _discard_output() -> None:
    """Discard buffered output, whose flush would fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _discard_unwritable_output() -> str:
    """Flush the output. If that fails, such as on a full disk, discard it and return a phrase for the message."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
        return ": the output is cut short"
    return ""


class ProgramFailed(Exception):
    """A program that a command ran has failed; the text is its last output."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports wrong arguments in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        """End with the message. Line breaks in it, such as in the name of a file, become blanks."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.splitlines())}\n")


@contextmanager
def ended_in_a_line(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the process after an error in the block, as :meth:`Command.main` describes."""
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
        if not (isinstance(error, (OSError, UnicodeError)) or isinstance(error, UserError)):
            raise
        parser.exit(2, f"{parser.prog}: error: {_message_of(error)}{_discard_unwritable_output()}\n")
    except ProgramFailed as failure:
        parser.exit(1, f"{failure}\n")
    except KeyboardInterrupt:
        parser.exit(INTERRUPTED, f"{parser.prog}: interrupted\n")


def _message_of(error: Exception) -> str:
    """The message of an error in one line. An error of the operating system names the file first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).splitlines())


def _check_streams() -> None:
    """Refuse a closed standard output, as after ``>&-``, and replace other closed streams by empty ones.

    The next file that is opened would take the place of a closed stream, and receive what is printed.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if is_closed:
        raise UserError("the standard output is closed: let it go to a file, or to /dev/null")


class Command(ABC):
    """A command: its arguments and its work.

    A subclass stands in a module of ``fairseq_plugins/cli`` that has its name and ends with
    ``if __name__ == "__main__": ItsClass().main()``. The order of arguments is fairseq's:
    ``COMMAND DATA --path CKPT...``.

    Attributes:
        name: of the module.
        summary: one line, for the list of all commands.
        description: for ``--help``, below the summary.
        forwards_to: program that gets the flags after ``--``, which are ``args.forwarded``. If empty, argparse handles
            ``--``.
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
            args: the values of the arguments. ``args.command_line`` is the command line, ``args.forwarded`` the flags
                after ``--``.

        Raises:
            UserError, OSError: with the whole message. Other ValueErrors are faults of the program.
            ProgramFailed: if a program that the command ran has failed.
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

        A user error ends the process with one line and exit status 2, a failed program with its last output and 1, an
        interrupt from the keyboard with one line and 130. A fault of the package keeps its traceback. If nobody reads
        the output any more, such as after ``| head -1``, the command ends quietly with 141.
        """
        logging.getLogger().setLevel(logging.WARNING)  # hides fairseq's messages about imports and loading
        if isinstance(sys.stdout, io.TextIOWrapper):  # text may have characters that the terminal lacks
            sys.stdout.reconfigure(errors=_ESCAPED)
        given = [str(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
        parser = self.get_parser()
        with ended_in_a_line(parser):
            self.run(self._parse(parser, given))

    def _parse(self, parser: argparse.ArgumentParser, given: List[str]) -> argparse.Namespace:
        """Parse the arguments. A subclass may accept flags that it does not declare."""
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
        """Parse the command's own arguments; the second value is the unknown ones."""
        return parser.parse_known_args(own)

    def _split(self, given: List[str]) -> Tuple[List[str], List[str]]:
        """Split off the arguments after ``--`` if they are for another program."""
        if not self.forwards_to or "--" not in given:
            return given, []
        place = given.index("--")
        return given[:place], given[place + 1 :]


class TrainingCommand(Command):
    """A command that passes unknown arguments to ``fairseq-train``; they are ``args.more``.

    The ``--`` before them, which other commands require, is optional.
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
            if is_foreign and not value.startswith("-") and value not in args.more:  # argparse took it for a positional
                parser.error(f"{flag} {value}: flags of fairseq-train come after all other words")
        args.command_line = shlex.join([*self.program.split(), *given])
        return args


class _Paths(argparse.Action):
    """Collects the paths of ``A.pt B.pt``, and of ``A.pt:B.pt`` as fairseq writes ensembles, in one list.

    A repeated flag adds to it, as with the action ``extend``.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Optional[str] = None,
    ) -> None:
        listed: List[str] = [path for text in values for path in listed_paths(text)]
        if not all(listed):
            raise argparse.ArgumentError(self, f"{' '.join(values)}: a path is empty")
        paths = [self.read(path) for path in listed]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *paths])

    def read(self, text: str) -> str:
        """Convert one path."""
        return text


class _Checkpoints(_Paths):
    def read(self, text: str) -> str:
        return checkpoint(text)


def _model(text: str) -> str:
    """Return a value of ``--path``. The flag takes all words behind it, even DATA if that does not come first."""
    path = given_path(text)
    if any(path.glob("dict*.txt")) and not any(path.glob("*.pt")):
        raise argparse.ArgumentTypeError(f"{text} is no model: give DATA first, before --path")
    return text


def checkpoint(text: str) -> str:
    """Return a value of ``--path``, PATH or NAME=PATH, in which the folder of a run becomes its checkpoint."""
    if Path(text).exists() or "=" not in text:
        return str(checkpoint_of(given_path(text)))
    name, _, path = text.partition("=")
    return f"{name}={checkpoint_of(Path(path)) if path else ''}"


def add_data(
    parser: argparse.ArgumentParser,
    *,
    written_by: str = "fairseq-preprocess --only-source",
    required: bool = True,
) -> None:
    """Declare DATA, ``args.data``: the path of a folder that exists, or None if it is not required."""
    parser.add_argument(
        "data",
        metavar="DATA",
        type=data_folder,
        nargs=None if required else "?",
        help=f"directory that {written_by} wrote",
    )


RUN = "; the folder of a run stands for its checkpoint_best.pt, or else checkpoint_last.pt"
"""End of the help of arguments that are checkpoints."""


def add_checkpoints(
    parser: argparse.ArgumentParser, *, help: str, required: bool = True, folders: Literal["runs", "kept"] = "runs"
) -> None:
    """Declare ``--path CKPT...``, ``args.path``: a list of texts.

    Paths joined by colons are split, unless a file has the whole name.

    Args:
        parser: of the command.
        help: of the flag.
        required: whether the flag is.
        folders: "runs" replaces the folder of a run by its checkpoint, "kept" keeps it.
    """
    action, help = (_Checkpoints, help + RUN) if folders == "runs" else (_Paths, help)
    parser.add_argument("--path", nargs="+", type=_model, required=required, metavar="CKPT", action=action, help=help)


def add_named_models(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Declare ``--path NAME=CKPT...``, ``args.path``: texts for ``named_paths``, as :func:`add_checkpoints`."""
    parser.add_argument(
        "--path",
        nargs="+",
        type=lambda text: checkpoint(_model(text)),
        action="extend",
        required=True,
        metavar="NAME=CKPT",
        help=help + RUN,
    )


def add_named_folders(parser: argparse.ArgumentParser, *, help: str, metavar: str = "NAME=SAVE_DIR") -> None:
    """Declare ``--path NAME=SAVE_DIR...``, ``args.path``: texts for ``named_paths``."""
    parser.add_argument("--path", nargs="+", type=_model, action="extend", required=True, metavar=metavar, help=help)


def add_split(parser: argparse.ArgumentParser, *, help: str = "split to score", default: str = "test") -> None:
    """Declare ``--split`` and, as fairseq calls it, ``--gen-subset``; ``args.split``."""
    parser.add_argument(
        "--split", "--gen-subset", default=default, metavar="SPLIT", help=f"{help} (default: %(default)s)"
    )


def add_input(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Declare ``--input FILE...``, ``args.input``: a list of paths, or None; ``-`` is the standard input."""
    parser.add_argument("--input", nargs="+", action="extend", type=given_path, metavar="FILE", help=help)


def add_tokenised(parser: argparse.ArgumentParser) -> None:
    """Declare ``--tokenised``."""
    parser.add_argument(
        "--tokenised",
        action="store_true",
        help="text is words and subwords between blanks, as the model was trained on, not raw",
    )


def add_beam(parser: argparse.ArgumentParser, *, default: Union[int, str] = 5) -> None:
    """Declare ``--beam``, ``args.beam``. A text as the default describes what the command does without the flag."""
    number = None if isinstance(default, str) else str(default)
    parser.add_argument(
        "--beam",
        type=int,
        default=os.environ.get("BEAM") or number,  # argparse checks a default that is a text
        metavar="N",
        help=f"hypotheses that are kept (default: BEAM in the environment, or {default})",
    )


def add_output_precision(parser: argparse.ArgumentParser, *, choices: Sequence[str]) -> None:
    """Declare ``--output-precision``, ``args.output_precision``, of scores of trained models."""
    parser.add_argument(
        "--output-precision",
        choices=choices,
        default="float32",
        help="of the output layer, whatever it was trained in (default: %(default)s)",
    )


def add_cpu(parser: argparse.ArgumentParser) -> None:
    """Declare ``--cpu``."""
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")


def add_plot(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Declare ``--plot FILE``, ``args.plot``: a path that can be written, or None."""
    parser.add_argument("--plot", type=picture_file, metavar="FILE", help=help)


def add_output_file(parser: argparse.ArgumentParser, flag: str, *, help: str, required: bool = False) -> None:
    """Declare a flag for an output file: a path that can be written, or None if it is not required."""
    parser.add_argument(flag, type=output_file, metavar="FILE", required=required, help=help)


def add_out(
    parser: argparse.ArgumentParser, *, help: str, default: Optional[str] = None, required: bool = True
) -> None:
    """Declare ``--out DIR``, ``args.out``: a folder that can be written. It is not required if there is a default.

    The default is checked like a given value.
    """
    parser.add_argument(
        "--out",
        type=output_folder,
        metavar="DIR",
        required=required and default is None,
        default=default,
        help=help if default is None else f"{help} (default: %(default)s)",
    )


def choose_device(args: argparse.Namespace) -> str:
    """Return the device of a GPU if there is one and ``--cpu`` was not given, else of the CPU."""
    return "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
