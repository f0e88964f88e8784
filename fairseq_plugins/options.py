"""Values from the command line: read and check numbers, choices and paths. User errors and faults of the program."""

import io
import math
import os
import re
from argparse import ArgumentTypeError
from contextlib import contextmanager, suppress
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
    Sequence,
    Tuple,
    Type,
    TypeVar,
    get_args,
)

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass


class UserError(ValueError):
    """A mistake of the user, with the remedy. Commands end with this one line and exit status 2; all other errors keep
    their traceback."""


def flag_of(destination: str) -> str:
    """Return the flag of argparse's name for it: ``--init-range`` for ``init_range``."""
    return f"--{destination.replace('_', '-')}"


def parse_int_list(text: str, *, flag: str, example: str = "400 400 200") -> List[int]:
    """Read a list of whole numbers such as ``"0 0 5 15"`` or ``"0,0,5,15"``.

    Args:
        text: from the command line.
        flag: name of the flag for the message.
        example: a valid value for the message.

    Raises:
        UserError: if the list is empty or an item is not a whole number.
    """
    items = text.replace(",", " ").split()
    if not items or not all(re.fullmatch(r"-?[0-9]+", item) for item in items):
        raise UserError(f'{flag} "{text}": give whole numbers, for example {flag} "{example}"')
    return [int(item) for item in items]


def parse_float_list(text: str, *, flag: str) -> List[float]:
    """Read a list of numbers such as ``"0.9 0.9 0.6"`` or ``"0.9,0.9,0.6"``.

    Raises:
        UserError: if the list is empty or an item is not a number.
    """
    try:
        numbers: List[float] = [float(item) for item in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if not numbers:
        raise UserError(f'{flag} "{text}": give numbers, for example {flag} "0.9 0.9 0.6"')
    return numbers


def named_paths(
    texts: Sequence[str], *, repeated_names: Literal["allowed", "refused"] = "allowed"
) -> List[Tuple[str, Path]]:
    """Split each ``NAME=PATH`` into NAME and PATH.

    Args:
        texts: from the command line.
        repeated_names: whether a NAME may be given twice.

    Raises:
        UserError: if a text has no NAME or no PATH, or a NAME is repeated and may not be.
    """
    named = [text.partition("=") for text in texts]
    for text, (name, _, path) in zip(texts, named):
        if not name or not path or (Path(text).exists() and not Path(path).exists()):  # such as runs/lr=0.1
            raise UserError(f"{text}: give it as NAME=PATH")
    if repeated_names == "refused" and len({name for name, _, _ in named}) < len(named):
        raise UserError("give each NAME once")
    return [(name, Path(path)) for name, _, path in named]


def optionally_named_paths(texts: Sequence[str]) -> List[Tuple[str, str]]:
    """Split texts that are NAME=PATH or a path, which then is its own name.

    A text is a path if it exists, if it has no "=", or if nothing or a "/" comes before the "=".

    Args:
        texts: from the command line.

    Raises:
        UserError: if some have a NAME and others none, or a NAME has no PATH.
    """
    parts: List[Tuple[str, str]] = []
    unnamed: List[str] = []
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not name or "/" in name or Path(text).exists():
            unnamed.append(text)
            name = path = text
        elif not path:
            raise UserError(f"{text}: give it as NAME=PATH")
        parts.append((name, path))
    if unnamed and len(unnamed) < len(texts):
        raise UserError(
            f"{unnamed[0]}: give it as NAME=PATH as the others, without : or / in NAME, or give none a NAME"
        )
    return parts


def check_choice(value: str, choices: Collection[str], *, flag: str) -> str:
    """Return ``value`` if it is one of the choices.

    Raises:
        UserError: if it is not.
    """
    if value not in choices:
        raise UserError(f"{flag} {value}: choose one of {', '.join(choices)}")
    return value


def check_dropout(rate: float, *, flag: str) -> float:
    """Return ``rate`` if it is a dropout probability in [0, 1).

    Raises:
        UserError: if it is not.
    """
    if not 0.0 <= rate < 1.0:
        raise UserError(f"{flag} {rate}: a dropout rate is the probability to drop, 0 <= rate < 1")
    return rate


def check_positive(value: float, *, flag: str) -> float:
    """Return ``value`` if it is greater than zero and finite.

    Raises:
        UserError: if it is not.
    """
    if not value > 0:
        raise UserError(f"{flag} {value}: give a value above 0")
    return _check_finite(value, flag=flag)


def check_whole(value: int, *, flag: str) -> int:
    """Return ``value`` if it is a whole number. Values from Python may have any type.

    Raises:
        UserError: if it is not.
    """
    if not isinstance(value, Integral):
        raise UserError(f"{flag} {value}: give a whole number")
    return value


def check_at_least_one(value: int, *, flag: str) -> int:
    """Return ``value`` if it is a whole number of 1 or more.

    Raises:
        UserError: if it is not.
    """
    if check_whole(value, flag=flag) < 1:
        raise UserError(f"{flag} {value}: give at least 1")
    return value


def check_not_negative(value: float, *, flag: str) -> float:
    """Return ``value`` if it is zero or more and finite.

    Raises:
        UserError: if it is not.
    """
    if not value >= 0:
        raise UserError(f"{flag} {value}: give 0 or more")
    return _check_finite(value, flag=flag)


def _check_finite(value: float, *, flag: str) -> float:
    if value == math.inf:
        raise UserError(f"{flag} {value}: give a finite value")
    return value


Config = TypeVar("Config", bound=FairseqDataclass)


def choices(values: Sequence[str]) -> Type[str]:
    """Return the type of a dataclass field whose flag takes one of ``values``.

    A parsed value is a string. In a configuration of hydra it is a member of fairseq's enumeration, which compares,
    hashes and prints like a string.
    """
    return ChoiceEnum(list(values))  # pyrefly: ignore[bad-return]


OnOff = choices(["on", "off"])
"""Type of flags with the values "on" and "off"."""


def check_choices(config: Config) -> Config:
    """Return ``config`` if each field of type :func:`choices` has one of its choices, or None if it may.

    The parser checks the command line. It does not check flags from Python and from ``--model-overrides``.

    Raises:
        UserError: naming the flag, its value and the choices.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        types = [kind for kind in (field.type, *get_args(field.type)) if isinstance(kind, type(OnOff))]  # or Optional
        words = [str(member) for kind in types for member in kind]
        if words and value is not None:
            check_choice(str(value), words, flag=flag_of(field.name))
    return config


def given_path(text: str) -> Path:
    """Return the path of an argument. One that begins with a dash is made absolute, so no program takes it for a flag.

    Raises:
        ArgumentTypeError: if it contains a reference in the eyes of fairseq, or is empty. An empty path often comes
            from an unset variable of the shell, and would mean the working directory.
    """
    if not text:
        raise ArgumentTypeError("the path is empty")
    if "${" in text:
        raise ArgumentTypeError(f"{text}: fairseq cannot read ${{ in a path: give another name")
    path = Path(text)
    return path.absolute() if str(path).startswith("-") and text != "-" else path


def checked_path(text: str, check: Callable[[Path], None]) -> Path:
    """Return the path of an argument after checking it.

    Raises:
        ArgumentTypeError: if it is empty, or with the message of a ValueError of ``check``.
    """
    path = given_path(text)
    try:
        check(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return path


def check_data_folder(path: Path) -> None:
    """Refuse a path that is no folder.

    Raises:
        UserError: with the remedy.
    """
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {wrong}: give the directory that data-prep wrote")


def data_folder(text: str) -> Path:
    """Return the folder of binarised text of an argument.

    Raises:
        ArgumentTypeError: if it is no folder.
    """
    return checked_path(text, check_data_folder)


BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"
"""Names of checkpoints in a ``--save-dir``."""

EXPORT_RECORD = "export.json"
"""File of an export that tells what it was made from, and the SHA-256 of its files."""


def listed_paths(text: str) -> List[str]:
    """Split a list of paths joined by colons. A path that exists may have colons.

    If no part exists, the text is split only if all parts end like checkpoints.
    """
    paths = utils.split_paths(text)
    is_list = any(map(os.path.exists, paths)) or all(path.endswith(".pt") for path in filter(None, paths))
    return paths if is_list else [text]


def checkpoint_of(path: Path) -> Path:
    """Return the best or else the last checkpoint in the folder of a run, and any other path unchanged."""
    return next((path / name for name in (BEST, LAST) if (path / name).is_file()), path)


def exported_checkpoint(number: int) -> str:
    """Name of a checkpoint in an export, whose models are numbered from 1."""
    return BEST if number == 1 else f"{Path(BEST).stem}{number}.pt"


def checkpoints_of(path: Path) -> List[Path]:
    """Return all checkpoints of an export, and :func:`checkpoint_of` of any other path."""
    found = [checkpoint_of(path)]
    while (path / EXPORT_RECORD).is_file() and (one := path / exported_checkpoint(len(found) + 1)).is_file():
        found.append(one)
    return found


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file in the folder of ``path``, which is renamed to ``path`` at the end of the block.

    So ``path`` is never incomplete: if the block fails, the temporary file is removed and ``path`` stays as it was. An
    OSError without a file name, such as of a full disk, or with that of the temporary file, then names ``path``.
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
        with suppress(OSError):  # such as of a name that is too long
            aside.unlink()


def check_replaceable(path: Path) -> None:
    """Refuse a path that no file can take. The first write tells all other reasons.

    Raises:
        UserError: with the remedy.
    """
    if os.path.isdir(path):
        raise UserError(f"{path}: this is a folder: give the name of a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: this is a device or a pipe, which a file would replace: give another name")
    if not os.path.isdir(path.parent):
        raise UserError(f"{path}: {path.parent} is no directory: make it first")
    _check_access(path.parent)


def _check_access(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: nothing can be written there: give another folder")


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, through :func:`replaced_file`."""
    with replaced_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_tensors(path: Path, content: Dict[str, Any]) -> None:
    """Save tensors through :func:`replaced_file`. Equal contents give equal files.

    The archive is made in memory, because torch hides the reason if it cannot write a file, such as a full disk.
    """
    archive = io.BytesIO()
    torch.save(content, archive)
    with replaced_file(path) as aside:
        aside.write_bytes(archive.getbuffer())


# Outputs are checked when arguments are parsed, before the work whose result would be lost.


def output_file(text: str) -> Path:
    """Return the file of an argument, in a folder that exists.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    return checked_path(text, check_replaceable)


def check_not_read(written: Path, read: Iterable[Path], *, flag: str) -> None:
    """Refuse to overwrite a file that the command reads.

    Args:
        written: the value of ``flag``.
        read: files that the command reads; they need not exist yet.
        flag: for the message.

    Raises:
        UserError: with the remedy.
    """
    for path in read:
        is_same_path = os.path.realpath(path) == os.path.realpath(written)
        if is_same_path or path.exists() and written.exists() and path.samefile(written):  # hard links
            raise UserError(f"{flag} {written} is read by this command: give another name")


def check_output_folder(path: Path) -> None:
    """Refuse a folder that could not be created, because a file has its name or that of a parent.

    Raises:
        UserError: with the remedy.
    """
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not os.path.isdir(existing):
        raise UserError(f"{path}: {existing} is a file: give a folder")
    _check_access(existing)


def output_folder(text: str) -> Path:
    """Return the folder of an argument; it need not exist yet.

    Raises:
        ArgumentTypeError: if it could not be created or written to.
    """
    return checked_path(text, check_output_folder)


def picture_file(text: str) -> Path:
    """Return the file of an argument for a picture, in a folder that exists.

    Raises:
        ArgumentTypeError: if it could not be written, or its suffix is no format of matplotlib.
    """
    from matplotlib.backend_bases import FigureCanvasBase  # imported here, because it is large

    path = output_file(text)
    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise ArgumentTypeError(f"{path}: give a name that ends in one of .{', .'.join(sorted(formats))}")
    return path
