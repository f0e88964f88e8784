"""Reading and checking values that come from the command line."""

import dis
import io
import math
import os
import re
import tempfile
from argparse import ArgumentTypeError
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    get_args,
)

import fairseq
import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass


def flag_of(destination: str) -> str:
    """The flag that argparse keeps under a name: ``--init-range`` of ``init_range``."""
    return f"--{destination.replace('_', '-')}"


def parse_int_list(text: str, *, flag: str, example: str = "400 400 200") -> List[int]:
    """Read a list of whole numbers such as ``"0 0 5 15"`` or ``"0,0,5,15"``.

    Args:
        text: from the command line.
        flag: that it is the value of, for the message.
        example: of a value that makes sense, for the message.

    Raises:
        ValueError: if the list is empty or an item is not a whole number.
    """
    items = text.replace(",", " ").split()
    if not items or not all(re.fullmatch(r"-?[0-9]+", item) for item in items):
        raise ValueError(f'{flag} "{text}": give whole numbers, for example {flag} "{example}"')
    return [int(item) for item in items]


def parse_float_list(text: str, *, flag: str) -> List[float]:
    """Read a list of numbers such as ``"0.9 0.9 0.6"`` or ``"0.9,0.9,0.6"``.

    Raises:
        ValueError: if the list is empty or an item is not a number.
    """
    try:
        numbers: List[float] = [float(item) for item in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if not numbers:
        raise ValueError(f'{flag} "{text}": give numbers, for example {flag} "0.9 0.9 0.6"')
    return numbers


def named_paths(
    texts: Sequence[str], *, repeated_names: Literal["allowed", "refused"] = "allowed"
) -> List[Tuple[str, Path]]:
    """NAME and PATH of each ``NAME=PATH``.

    Args:
        texts: from the command line.
        repeated_names: what is done with a NAME that is given twice.

    Raises:
        ValueError: where a text has no NAME or no PATH, or a NAME is given twice and may not.
    """
    named = [text.partition("=") for text in texts]
    for text, (name, _, path) in zip(texts, named):
        if not name or not path or (Path(text).exists() and not Path(path).exists()):  # such as runs/lr=0.1
            raise ValueError(f"{text}: give it as NAME=PATH")
    if repeated_names == "refused" and len({name for name, _, _ in named}) < len(named):
        raise ValueError("give each NAME once")
    return [(name, Path(path)) for name, _, path in named]


def optionally_named_paths(texts: Sequence[str]) -> List[Tuple[str, str]]:
    """NAME and PATH of each text that is NAME=PATH, or a path, which is its own name.

    A text is a path if it is there, or if it has no "=", or nothing or a "/" before it.

    Args:
        texts: from the command line.

    Raises:
        ValueError: if some have a NAME and others none, or a NAME has no PATH.
    """
    parts = [_name_and_path(text) for text in texts]
    unnamed = [text for text, part in zip(texts, parts) if part is None]
    if unnamed and len(unnamed) < len(texts):
        raise ValueError(
            f"{unnamed[0]}: give it as NAME=PATH as the others, without : or / in NAME, or give none a NAME"
        )
    return [part or (text, text) for text, part in zip(texts, parts)]


def _name_and_path(text: str) -> Optional[Tuple[str, str]]:
    name, separator, path = text.partition("=")
    if not separator or not name or "/" in name or Path(text).exists():
        return None
    if not path:
        raise ValueError(f"{text}: give it as NAME=PATH")
    return name, path


def check_choice(value: str, choices: Collection[str], *, flag: str) -> str:
    """Return ``value`` if it is one of the choices.

    Raises:
        ValueError: if it is not.
    """
    if value not in choices:
        raise ValueError(f"{flag} {value}: choose one of {', '.join(choices)}")
    return value


def check_dropout(rate: float, *, flag: str) -> float:
    """Return ``rate`` if it is a probability to drop, that is within [0, 1).

    Raises:
        ValueError: if it is not.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{flag} {rate}: a dropout rate is the probability to drop, 0 <= rate < 1")
    return rate


def check_positive(value: float, *, flag: str) -> float:
    """Return ``value`` if it is greater than zero and finite.

    Raises:
        ValueError: if it is not.
    """
    if not value > 0:
        raise ValueError(f"{flag} {value}: give a value above 0")
    return _check_finite(value, flag=flag)


def check_whole(value: int, *, flag: str) -> int:
    """Return ``value`` if it is a whole number; from Python it may be anything.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(value, Integral):
        raise ValueError(f"{flag} {value}: give a whole number")
    return value


def check_at_least_one(value: int, *, flag: str) -> int:
    """Return ``value`` if it is a whole number of 1 or more.

    Raises:
        ValueError: if it is not.
    """
    if check_whole(value, flag=flag) < 1:
        raise ValueError(f"{flag} {value}: give at least 1")
    return value


def check_not_negative(value: float, *, flag: str) -> float:
    """Return ``value`` if it is zero or more and finite.

    Raises:
        ValueError: if it is not.
    """
    if not value >= 0:
        raise ValueError(f"{flag} {value}: give 0 or more")
    return _check_finite(value, flag=flag)


def _check_finite(value: float, *, flag: str) -> float:
    if value == math.inf:
        raise ValueError(f"{flag} {value}: give a finite value")
    return value


# Flags that take one of a few words.


Config = TypeVar("Config", bound=FairseqDataclass)


def choices(values: Sequence[str]) -> Type[str]:
    """The type of a dataclass field whose flag takes one of ``values``.

    A parsed value is a string. In a configuration of hydra it is a member of fairseq's enumeration, which compares,
    hashes and prints as a string does.
    """
    return ChoiceEnum(list(values))  # pyrefly: ignore[bad-return]


OnOff = choices(["on", "off"])
"""Of flags that switch something on or off, and say so."""


def check_choices(config: Config) -> Config:
    """Return ``config`` if each of its flags that take one of a few words holds one of them, or None where it may.

    The command line is checked by its parser; flags from Python and from ``--model-overrides`` are not.

    Raises:
        ValueError: naming the flag, its value and the choices.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        words = _words(field.type)
        if words and value is not None:
            check_choice(str(value), words, flag=flag_of(field.name))
    return config


def _words(field_type: Any) -> List[str]:
    """What a field of :func:`choices` may hold, Optional or not; nothing for other fields."""
    kinds = [kind for kind in (field_type, *get_args(field_type)) if isinstance(kind, type(OnOff))]
    return [str(member) for kind in kinds for member in kind]


# Paths among the arguments of a command, refused where a check refuses them.


def given_path(text: str) -> Path:
    """The path that was typed; one that begins with a dash is made absolute, so that no program takes it for a flag.

    Raises:
        ArgumentTypeError: if it is empty, as where a variable of the shell is not set, and would be the working folder,
            or holds what fairseq takes for a reference.
    """
    if not text:
        raise ArgumentTypeError("the path is empty")
    if "${" in text:
        raise ArgumentTypeError(f"{text}: fairseq cannot read ${{ in a path: give another name")
    path = Path(text)
    return path.absolute() if str(path).startswith("-") and text != "-" else path


def checked_path(text: str, check: Callable[[Path], None]) -> Path:
    """The path that was typed.

    Raises:
        ArgumentTypeError: if it is empty, or with what ``check`` says in its ValueError.
    """
    path = given_path(text)
    try:
        check(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return path


# Folders and checkpoints that a command reads.


def check_data_folder(path: Path) -> None:
    """Refuse what is no folder.

    Raises:
        ValueError: with the remedy.
    """
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {wrong}: give the directory that data-prep wrote")


def data_folder(text: str) -> Path:
    """A directory with binarised text.

    Raises:
        ArgumentTypeError: if it is no folder.
    """
    return checked_path(text, check_data_folder)


BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"
"""Names of the checkpoints in a ``--save-dir``."""


def listed_paths(text: str) -> List[str]:
    """The paths of a list that is joined by colons; a path that exists is one, whatever its name.

    Where nothing of the list exists, it is a list if all of it are names of checkpoints.
    """
    paths = utils.split_paths(text)
    is_list = any(map(os.path.exists, paths)) or all(path.endswith(".pt") for path in filter(None, paths))
    return paths if is_list else [text]


def checkpoint_of(path: Path) -> Path:
    """The path itself, or the best, else the last, checkpoint of the folder of a run; a folder without one is kept."""
    return next((path / name for name in (BEST, LAST) if (path / name).is_file()), path)


# Files that are written aside and renamed, so that a name holds a whole file or none.


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A file beside ``path`` with the same suffix, which takes its name at the end of the block.

    If the block fails, the file is removed and what ``path`` held stays. An error of the operating system that names no
    file, such as a full disk, or the file beside it, names ``path``.
    """
    aside = _aside(path)
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        if error.filename in (None, str(aside)):
            error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Refuse a path that :func:`replaced_file` could not write, by writing an empty file beside it.

    Raises:
        ValueError: with the remedy.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{path}: this is a folder: give the name of a file")
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: this is a device or a pipe, which a file would replace: give another name")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: {path.parent} is no directory: make it first")
        aside = _aside(path)
        aside.touch()
        aside.unlink()
    except OSError as error:
        raise ValueError(f"{path}: nothing can be written there ({error.strerror}): give another name") from error


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with replaced_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_tensors(path: Path, content: Dict[str, Any]) -> None:
    """Write what torch can save; equal contents are equal files.

    It is written at once, since torch hides why a write of its own has failed, such as for want of room.
    """
    archive = io.BytesIO()
    torch.save(content, archive)
    with replaced_file(path) as aside:
        aside.write_bytes(archive.getbuffer())


# Files and folders that a command writes: types of arguments, which refuse what could not be written.
#
# The check stands at the reading of arguments, before the work whose result would be lost.


def output_file(text: str) -> Path:
    """A file in a folder that exists.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    return checked_path(text, check_replaceable)


def check_not_read(written: Path, read: Iterable[Path], *, flag: str) -> None:
    """Refuse to overwrite a file that the command reads.

    Args:
        written: the value of ``flag``.
        read: files, which need not exist yet.
        flag: for the message.

    Raises:
        ValueError: with the remedy.
    """
    if any(os.path.realpath(path) == os.path.realpath(written) or _is_one_file(path, written) for path in read):
        raise ValueError(f"{flag} {written} is read by this command: give another name")


def _is_one_file(path: Path, other: Path) -> bool:
    """Whether two names are links to one file."""
    return path.exists() and other.exists() and path.samefile(other)


def check_output_folder(path: Path) -> None:
    """Refuse a folder that could not be made, or where nothing could be written.

    Raises:
        ValueError: with the remedy.
    """
    try:
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise ValueError(f"{path}: {existing} is a file: give a folder")
        Path(tempfile.mkdtemp(dir=existing, prefix=".")).rmdir()
    except OSError as error:
        raise ValueError(f"{path}: nothing can be written there ({error.strerror}): give another folder") from error


def output_folder(text: str) -> Path:
    """A folder, which need not exist yet.

    Raises:
        ArgumentTypeError: if it could not be made, or nothing could be written there.
    """
    return checked_path(text, check_output_folder)


def picture_file(text: str) -> Path:
    """A file for a picture, in a folder that exists; its suffix is a format that can be drawn.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    from matplotlib.figure import Figure  # imported here, when fairseq's debug logging is off

    path = output_file(text)
    picture = Figure(figsize=(1, 1))
    picture.text(0, 0, "a")
    formats = picture.canvas.get_supported_filetypes()
    suffix = path.suffix.lstrip(".")
    if suffix not in formats:
        raise ArgumentTypeError(f"{path}: give a name that ends in one of .{', .'.join(sorted(formats))}")
    try:
        picture.savefig(io.BytesIO(), format=suffix)  # some formats need programs that may not be there
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise ArgumentTypeError(f"{path}: no picture of this format can be drawn here ({error}): take .png") from error
    return path


# What a user gave wrongly, told from a fault of a program: by what made the error.


PACKAGE = Path(__file__).resolve().parent
HOST = Path(fairseq.__file__).resolve().parent


def is_raised_in(error: BaseException, *folders: Path) -> bool:
    """Whether a ``raise`` or an ``assert`` of the programs in one of the folders made the error.

    One that Python made, such as of too few values to unpack, is a fault of the program.
    """
    frames = error.__traceback__
    if frames is None:
        return False
    while frames.tb_next is not None:
        frames = frames.tb_next
    code = frames.tb_frame.f_code
    is_raised = dis.opname[code.co_code[frames.tb_lasti]] == "RAISE_VARARGS"
    return is_raised and not set(folders).isdisjoint(Path(code.co_filename).resolve().parents)


def is_refusal(error: BaseException) -> bool:
    """Whether it is a ``ValueError`` that a ``raise`` of this package made, of something that a user gave wrongly."""
    return isinstance(error, ValueError) and is_raised_in(error, PACKAGE)
