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
from pathlib import Path
from typing import Any, ClassVar, Iterator, List, Literal, NoReturn, Optional, Sequence, Tuple, Union

import torch

from fairseq_plugins.options import (
    checkpoint_of,
    data_folder,
    given_path,
    is_refusal,
    listed_paths,
    output_file,
    output_folder,
    picture_file,
)

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
    ``if __name__ == "__main__": ItsClass().main()``. The order of arguments is fairseq's:
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
                :func:`no refusal <fairseq_plugins.options.is_refusal>` is a fault.
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
        logging.getLogger().setLevel(logging.WARNING)  # what fairseq notes while importing and loading
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


# Arguments that commands share, each declared once.


class _Paths(argparse.Action):
    """Keeps the paths of ``A.pt B.pt``, and of ``A.pt:B.pt`` as fairseq writes ensembles, as one list.

    A flag that is given again adds to it, as one that has the action ``extend``.
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
        """A path of the list."""
        return text


class _Checkpoints(_Paths):
    def read(self, text: str) -> str:
        return checkpoint(text)


def _model(text: str) -> str:
    """A value of ``--path``, which takes all words behind it, DATA among them if that does not come first."""
    path = given_path(text)
    if any(path.glob("dict*.txt")) and not any(path.glob("*.pt")):
        raise argparse.ArgumentTypeError(f"{text} is no model: give DATA first, before --path")
    return text


def checkpoint(text: str) -> str:
    """A value of ``--path``, a path or NAME=PATH; the folder of a run is its checkpoint."""
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
    """Declare DATA, ``args.data``: the path of a folder that is there, or None where it is not required."""
    parser.add_argument(
        "data",
        metavar="DATA",
        type=data_folder,
        nargs=None if required else "?",
        help=f"directory that {written_by} wrote",
    )


RUN = "; the folder of a run stands for its checkpoint_best.pt, or else checkpoint_last.pt"
"""Ends the help of what takes checkpoints."""


def add_checkpoints(
    parser: argparse.ArgumentParser, *, help: str, required: bool = True, folders: Literal["runs", "kept"] = "runs"
) -> None:
    """Declare ``--path CKPT...``, ``args.path``: a list of texts.

    Those joined by colons are parted, where no file has the whole name.

    Args:
        folders: whether the folder of a run stands for its checkpoint, or itself.
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
    """Declare ``--beam``, ``args.beam``; a text tells what the command takes where ``args.beam`` is None."""
    number = None if isinstance(default, str) else str(default)
    parser.add_argument(
        "--beam",
        type=int,
        default=os.environ.get("BEAM") or number,  # a text is checked as if it were typed
        metavar="N",
        help=f"hypotheses that are kept (default: BEAM in the environment, or {default})",
    )


def add_output_precision(parser: argparse.ArgumentParser, *, choices: Sequence[str]) -> None:
    """Declare ``--output-precision``, ``args.output_precision``, of what is scored with trained models."""
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
    """Declare a flag that names a file to write: a path that can be written, or None where it is not required."""
    parser.add_argument(flag, type=output_file, metavar="FILE", required=required, help=help)


def add_out(
    parser: argparse.ArgumentParser, *, help: str, default: Optional[str] = None, required: bool = True
) -> None:
    """Declare ``--out DIR``, ``args.out``: a folder that can be written; not required where there is a default.

    A default is checked as if it were typed.
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
    """The GPU where there is one, unless ``--cpu`` was given."""
    return "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"


# What commands that train have in common.


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
