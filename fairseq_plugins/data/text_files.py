"""Text files line by line, compressed by gzip or not."""

import gzip
import sys
import unicodedata
import zlib
from pathlib import Path
from typing import Iterable, Iterator, List, Literal, Tuple

STANDARD_INPUT = Path("-")
"""Stands for the standard input where a file can be given."""

_GZIP = b"\x1f\x8b"

_TO_UTF_8 = "convert it to UTF-8, such as by iconv -f UTF-16 -t UTF-8"


def check_file(path: Path, *, wanted: str) -> None:
    """Refuse a path that cannot be read; ``wanted`` says what to give.

    Raises:
        ValueError: if there is nothing, a folder, or a device, which may never end.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give {wanted}")
    if not path.exists():
        raise ValueError(f"{path} does not exist: give {wanted}")
    if path.is_char_device() or path.is_block_device():
        raise ValueError(f"{path} is a device: give {wanted}")


def check_line_ends(first_line: bytes, *, name: object) -> None:
    """Refuse text whose lines end in carriage returns alone; it would be one line.

    Args:
        first_line: up to the first newline, or more.
        name: of the file, for the message.

    Raises:
        ValueError: with the remedy.
    """
    if b"\n" not in first_line and b"\r" in first_line.rstrip(b"\r"):
        raise ValueError(f"{name}: its lines end in carriage returns, not in newlines: convert it by tr '\\r' '\\n'")


def byte_lines(path: Path, *, wanted: str = "a text file") -> Iterator[bytes]:
    """Lines of a file with their newlines; a file that begins as gzip does is decompressed, whatever its name.

    Raises:
        ValueError: at once as :func:`check_file`; on the way if the file is damaged.
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
        raise ValueError(f"{path} is truncated or damaged after line {number} ({error}): copy it again") from error


def decode_lines(lines: Iterable[bytes], *, name: object) -> Iterator[Tuple[int, str]]:
    """Number, from 1, and text of each line, without its newline; a byte order mark is left out.

    Args:
        lines: in UTF-8.
        name: of the file, for messages.

    Raises:
        ValueError: on the way, with the line that is not UTF-8, or if lines end in carriage returns alone.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1:
            check_line_ends(line, name=name)
        if number <= 2 and b"\0" in line:  # which decodes without an error
            raise ValueError(f"{name}, line {number}: not UTF-8: it looks like UTF-16, {_TO_UTF_8}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: not UTF-8: {error.reason}; {_TO_UTF_8}") from error
        yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def numbered_lines(path: Path, *, wanted: str = "a text file") -> Iterator[Tuple[int, str]]:
    """Number and text of each line of a file, ``-`` for the standard input; see :func:`decode_lines`.

    Raises:
        ValueError: as :func:`byte_lines`.
    """
    lines = sys.stdin.buffer if path == STANDARD_INPUT else byte_lines(path, wanted=wanted)
    return decode_lines(lines, name=name_of(path))


def read_lines(
    path: Path, *, when_empty: Literal["refused", "kept"] = "refused", unicode: Literal["NFC", "kept"] = "NFC"
) -> List[str]:
    """All lines of a file without their newlines.

    Args:
        path: ``-`` is the standard input.
        when_empty: what is done with a file without a line.
        unicode: lines are put into the composed form, so that equal texts compare as equal, or kept as they are.

    Raises:
        ValueError: if the file is missing, empty, damaged or not UTF-8, or knows carriage returns alone; the message
            names the line.
    """
    found = [text for _, text in numbered_lines(path)]
    if not found and when_empty == "refused":
        raise ValueError(f"{name_of(path)} is empty")
    return [unicodedata.normalize("NFC", line) for line in found] if unicode == "NFC" else found


def name_of(*paths: Path) -> str:
    """How messages name files that are read as one text."""
    return " and ".join("standard input" if path == STANDARD_INPUT else str(path) for path in paths)
