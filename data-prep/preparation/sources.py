"""The files that a corpus is made of, compressed or not: their lines, and whether they are the right ones."""

import errno
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import CHECK_OR_PASS, DataError
from .lines import Row, aligned, decode_lines

BLOCK = 1 << 20
# a .zip file with a flipped bit may tell of a method or an encryption that nobody knows
DAMAGE = (
    *(EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile),
    *(NotImplementedError, RuntimeError),
)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def digest_of_all(digests: Mapping[str, str]) -> str:
    """A short checksum of files, by their names and checksums."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def damage_reported(where: object, *, remedy: str = CHECK_OR_PASS) -> Iterator[None]:
    """DataError with a remedy instead of what a damaged archive raises."""
    try:
        yield
    except DAMAGE as error:
        raise DataError(f"{where} is truncated or damaged ({error}): {remedy}") from None
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # a decompressor's own, or a place that the file has not
            raise
        raise DataError(f"{where} is truncated or damaged ({error}): {remedy}") from None


@contextmanager
def opened(path: Path, *, remedy: str = CHECK_OR_PASS) -> Iterator[IO[bytes]]:
    """A file open for reading, decompressed if its name ends in ``.gz``."""
    with damage_reported(path, remedy=remedy), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        yield file


def content_digest(path: Path, *, remedy: str = CHECK_OR_PASS) -> str:
    """SHA-256 of what ``opened`` reads."""
    result = hashlib.sha256()
    with opened(path, remedy=remedy) as file:
        while block := file.read(BLOCK):
            result.update(block)
    return result.hexdigest()


def check_digest(found: str, expected: str, where: object, *, remedy: str = CHECK_OR_PASS) -> None:
    """DataError unless the SHA-256 of what is at ``where`` is the expected one."""
    if found != expected:
        raise DataError(f"{where} has SHA-256 {found}, expected {expected}: {remedy}")


def file_lines(path: Path, name: object = None, *, remedy: str = CHECK_OR_PASS) -> Iterator[str]:
    """Cleaned lines of a file, decompressed if need be; ``name`` stands for it in an error message."""
    with opened(path, remedy=remedy) as file:
        yield from decode_lines(file, name or path)


def aligned_files(source: Path, target: Path, source_name: object = None, target_name: object = None) -> Iterator[Row]:
    """The pairs of lines of two files."""
    names = source_name or source, target_name or target
    return aligned(file_lines(source, names[0]), file_lines(target, names[1]), *names)


def counted(rows: Iterable[Row], expected: int, name: object, *, remedy: str = CHECK_OR_PASS) -> Iterator[Row]:
    """``rows``; DataError at the end if there are not as many as expected."""
    count = 0
    for row in rows:
        count += 1
        yield row
    if count != expected:
        raise DataError(f"{name} has {count} lines, expected {expected}: {remedy}")


def digested(rows: Iterable[Row], expected: str, name: object, *, remedy: str = CHECK_OR_PASS) -> Iterator[Row]:
    """``rows`` of one side; DataError at the end unless the file of their lines has the expected SHA-256."""
    result = hashlib.sha256()
    for row in rows:
        (line,) = row
        result.update(f"{line}\n".encode())
        yield row
    check_digest(result.hexdigest(), expected, name, remedy=remedy)


def plain_or_gz(folder: Path, name: str) -> Path | None:
    """``name.gz`` in the folder, or ``name``, or None; DataError if there are both."""
    found = [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {name}.gz and {name}: leave the one that is meant")
    return found[0] if found else None


def text_lines(content: bytes, name: object) -> list[str]:
    """Cleaned lines of a file's content."""
    return list(decode_lines(io.BytesIO(content), name))
