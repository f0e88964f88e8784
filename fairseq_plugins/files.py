"""Files: paths of arguments, lines of text, digests, outputs."""

import gzip
import hashlib
import io
import json
import os
import re
import sys
import time
import unicodedata
import zlib
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple

import torch
from fairseq import utils

from fairseq_plugins.options import UserError

RECENT_SECONDS = 2
"""A file that was modified so recently may change again without a change of its recorded time."""

STANDARD_INPUT = Path("-")
"""Stands for standard input where a file can be given."""

_GZIP = b"\x1f\x8b"
_PACKED = re.compile(rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ")
"""Beginnings of files of gzip, bzip2 and xz."""

_TO_UTF_8 = "convert it to UTF-8, such as by iconv -f WINDOWS-1252 (or UTF-16) -t UTF-8"
_WITHOUT_NUL = "convert it by iconv -f UTF-16 -t UTF-8 if it is UTF-16, else remove the bytes by tr -d '\\0'"


def given_path(text: str) -> Path:
    """Return the path of an argument. One that begins with a dash is made absolute, so no program takes it for a flag.

    Raises:
        UserError: if fairseq would see a reference in it, or it is empty. An empty path often comes
            from an unset variable of the shell, and would mean the working directory.
    """
    if not text:
        raise UserError("the path is empty")
    if "${" in text:
        raise UserError(f"{text}: fairseq cannot read ${{ in a path: give another name")
    path = Path(text)
    return path.absolute() if str(path).startswith("-") and text != "-" else path


def data_folder(text: str) -> Path:
    """Return the folder of binarised text of an argument.

    Raises:
        UserError: if it is no folder.
    """
    path = given_path(text)
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {wrong}: give the directory that data-prep wrote")
    return path


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


def newest_checkpoint(save_dir: Path, suffix: str = "") -> Optional[Path]:
    """The checkpoint of a run that was written last, or None. A process's part of a model has a suffix."""
    found = [path for path in save_dir.glob("checkpoint*.pt") if is_saved_by_run(path, suffix)]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def is_saved_by_run(path: Path, suffix: str = "") -> bool:
    """Whether a file has the name of a checkpoint that a run saves."""
    name = rf"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+){re.escape(suffix)}\.pt"
    return re.fullmatch(name, path.name) is not None and path.is_file()


def exported_checkpoint(number: int) -> str:
    """Name of a checkpoint in an export, whose models are numbered from 1."""
    return BEST if number == 1 else f"{Path(BEST).stem}{number}.pt"


def checkpoints_of(path: Path) -> List[Path]:
    """Return all checkpoints of an export, and :func:`checkpoint_of` of any other path."""
    found = [checkpoint_of(path)]
    while (path / EXPORT_RECORD).is_file() and (one := path / exported_checkpoint(len(found) + 1)).is_file():
        found.append(one)
    return found


# Text


def check_file(path: Path, *, wanted: str) -> None:
    """Check that a path can be read. ``wanted`` says in the message what to give.

    Raises:
        UserError: if it does not exist, is a folder, or is a device, which may never end.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: give {wanted}")
    if not path.exists():
        raise UserError(f"{path} does not exist: give {wanted}")
    if path.is_char_device() or path.is_block_device():
        raise UserError(f"{path} is a device: give {wanted}")


def byte_lines(path: Path, *, wanted: str = "a text file") -> Iterator[bytes]:
    """Lines of a file with their newlines. A file that begins like gzip is decompressed, whatever its name.

    Raises:
        UserError: at once as :func:`check_file`, and while reading if the file is damaged.
    """
    check_file(path, wanted=wanted)
    return _unpacked_lines(path)


def _unpacked_lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            for line in gzip.open(raw) if packed else raw:
                number += 1
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is truncated or damaged after line {number} ({error}): copy it again") from error


def decode_lines(lines: Iterable[bytes], *, name: object) -> Iterator[Tuple[int, str]]:
    """Number (from 1) and text of each line, without newline and byte order mark.

    Args:
        lines: lines in UTF-8.
        name: name of the file, for messages.

    Raises:
        UserError: while reading, if a line is not UTF-8 (with its number) or lines end in carriage returns alone.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1 and _PACKED.match(line):
            raise UserError(f"{name} is compressed: unpack it first, such as by zcat, bzcat or xzcat")
        if number == 1 and b"\n" not in line and b"\r" in line.rstrip(b"\r"):  # the whole text would be one line
            raise UserError(f"{name}: its lines end in carriage returns, not in newlines: convert it by tr '\\r' '\\n'")
        if number <= 2 and b"\0" in line:  # UTF-16 of ASCII is valid UTF-8
            raise UserError(f"{name}, line {number}: there is a NUL byte: {_WITHOUT_NUL}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name}, line {number}: not UTF-8: {error.reason}; {_TO_UTF_8}") from error
        yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def numbered_lines(path: Path, *, wanted: str = "a text file") -> Iterator[Tuple[int, str]]:
    """Number and text of each line of a file or, for ``-``, of standard input. See :func:`decode_lines`.

    Raises:
        UserError: as :func:`byte_lines`.
    """
    lines = sys.stdin.buffer if path == STANDARD_INPUT else byte_lines(path, wanted=wanted)
    return decode_lines(lines, name=name_of(path))


def read_lines(
    path: Path, *, when_empty: Literal["refused", "kept"] = "refused", unicode: Literal["NFC", "kept"] = "NFC"
) -> List[str]:
    """All lines of a file without their newlines.

    Args:
        path: a file, or ``-`` for standard input.
        when_empty: whether a file without a line is an error.
        unicode: NFC composes characters, so that equal texts compare as equal.

    Raises:
        UserError: if the file is missing, empty, damaged or not UTF-8, or ends lines in carriage returns alone. The
            message names the line.
    """
    found = [text for _, text in numbered_lines(path)]
    if not found and when_empty == "refused":
        raise UserError(f"{name_of(path)} is empty")
    return [unicodedata.normalize("NFC", line) for line in found] if unicode == "NFC" else found


def regular_files(paths: Sequence[Path], *, flag: str = "--reference") -> List[Path]:
    """The paths of texts that are read several times. Raises UserError if one cannot be."""
    for path in paths:
        if path.is_dir():
            raise UserError(f"{flag} {path} is a folder: give a text file; DATA comes first, before all flags")
        if path == STANDARD_INPUT or (path.exists() and not path.is_file()):
            raise UserError(f"{flag} {path}: it is read several times, give a regular file")
        read_lines(path)
    return list(paths)


def read_json(path: Path, fields: Mapping[str, type], *, wrong: str) -> Dict[str, Any]:
    """The object in a JSON file, with values of the types ``fields`` by name.

    Raises:
        UserError: "PATH ``wrong``", if the file holds something else.
    """
    found = None
    with suppress(RecursionError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in fields.items()):
        raise UserError(f"{path} {wrong}")
    return found


def name_of(*paths: Path) -> str:
    """Name, for messages, of files that are read as one text."""
    return " and ".join("standard input" if path == STANDARD_INPUT else str(path) for path in paths)


# Digests


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. A process reads an unchanged file once."""
    status = path.stat()
    read = _read_digest if time.time() - status.st_mtime > RECENT_SECONDS else _read_digest.__wrapped__
    return read(str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _read_digest(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def distinct_digests(paths: Sequence[str], *, flag: str) -> Dict[str, str]:
    """Digests of the files of models, by path; a missing file has its path instead.

    Raises UserError if two files are equal, for example because the last checkpoint is the best one.
    """
    digests: Dict[str, str] = {}
    for path in paths:
        digest = file_digest(Path(path)) if Path(path).is_file() else path
        same = next((other for other, one in digests.items() if one == digest), None)
        if same is not None:
            raise UserError(f"{flag}: {same} and {path} hold the same model: give each model once")
        digests[path] = digest
    return digests


# Outputs. They are checked when arguments are parsed, before the work whose result would be lost.


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file in the folder of ``path``, which is renamed to ``path`` at the end of the block.

    So ``path`` is never incomplete: if the block fails, the temporary file is removed and ``path`` stays as it was. An
    OSError that names no file, such as of a full disk, or the temporary file, then names ``path``. A
    symbolic link stays, and its target is replaced.
    """
    path = Path(os.path.realpath(path))
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
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


def output_file(text: str) -> Path:
    """Return the file of an argument, in a folder that exists.

    Raises:
        UserError: if it could not be written. Other obstacles show at the first write.
    """
    path = given_path(text)
    if path == STANDARD_INPUT:
        raise UserError(f"{path}: this is written to a file: give its name")
    if os.path.isdir(path):
        raise UserError(f"{path}: this is a folder: give the name of a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: this is a device or a pipe, which a file would replace: give another name")
    if not os.path.isdir(path.parent):
        raise UserError(f"{path}: {path.parent} is no directory: make it first")
    _check_access(Path(os.path.realpath(path)).parent)
    return path


def _check_access(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: nothing can be written there: give another folder")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, through :func:`replaced_file`."""
    with replaced_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each with a newline, as :func:`write_text`."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object for :func:`read_json`, as :func:`write_text`."""
    write_text(path, f"{json.dumps(content, indent=1)}\n")


def write_tensors(path: Path, content: Dict[str, Any]) -> None:
    """Save tensors through :func:`replaced_file`. Equal contents give equal files.

    The archive is made in memory, because torch hides the reason if it cannot write a file, such as a full disk.
    """
    archive = io.BytesIO()
    torch.save(content, archive)
    with replaced_file(path) as aside:
        aside.write_bytes(archive.getbuffer())


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


def output_folder(text: str) -> Path:
    """Return the folder of an argument; it need not exist yet.

    Raises:
        UserError: if it could not be created, because a file has its name or a parent's, or written to.
    """
    path = given_path(text)
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not os.path.isdir(existing):
        raise UserError(f"{path}: {existing} is a file: give a folder")
    _check_access(existing)
    return path


def picture_file(text: str) -> Path:
    """Return the file of an argument for a picture, in a folder that exists.

    Raises:
        UserError: if it could not be written, or its suffix is no format of matplotlib.
    """
    from matplotlib.backend_bases import FigureCanvasBase  # imported here, because it is large

    path = output_file(text)
    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise UserError(f"{path}: give a name that ends in one of .{', .'.join(sorted(formats))}")
    return path
