"""The files that a corpus is made of: on disk, in archives, or behind a mirror."""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO

from .errors import CHECK_OR_PASS, DataError, note
from .lines import Pair, aligned, decode_lines, progress

TIMEOUT = 60  # seconds without a byte
BLOCK = 1 << 20


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def _damage_reported(where: object) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"{where} is truncated or damaged ({error}): {CHECK_OR_PASS}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file open for reading, decompressed if its name ends in ``.gz``."""
    with _damage_reported(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        yield file


def content_digest(path: Path) -> str:
    """SHA-256 of what ``opened`` reads."""
    result = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(BLOCK):
            result.update(block)
    return result.hexdigest()


def file_lines(path: Path, name: object = None) -> Iterator[str]:
    """Cleaned lines of a file, decompressed if need be; ``name`` stands for it in an error message."""
    with opened(path) as file:
        yield from decode_lines(file, name or path)


def aligned_files(source: Path, target: Path, source_name: object = None, target_name: object = None) -> Iterator[Pair]:
    """The pairs of lines of two files."""
    names = source_name or source, target_name or target
    return aligned(file_lines(source, names[0]), file_lines(target, names[1]), *names)


def counted(pairs: Iterable[Pair], expected: int, name: object) -> Iterator[Pair]:
    """``pairs``; DataError at the end if there are not as many as expected."""
    count = 0
    for pair in pairs:
        count += 1
        yield pair
    if count != expected:
        raise DataError(f"{name} has {count} lines, expected {expected}: {CHECK_OR_PASS}")


def plain_or_gz(folder: Path, name: str) -> Path | None:
    """``name.gz`` in the folder, or ``name``, or None."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def is_gzip(path: Path) -> bool:
    """Whether the file decompresses to its end."""
    try:
        with gzip.open(path) as file:
            while file.read(BLOCK):
                pass
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False
    return True


def text_lines(content: bytes, name: object) -> list[str]:
    """Cleaned lines of a file's content."""
    return list(decode_lines(io.BytesIO(content), name))


def unpack(
    archive: Path, wanted: set[str], folder: Path, *, name: object = None, all_needed: bool = True
) -> dict[str, Path]:
    """Put the members of a .tgz archive whose base names are ``wanted`` into ``folder``; where each now is.

    ``name`` stands for the archive in an error message. All of them must be there, unless not ``all_needed``.
    """
    where = name or archive
    note(f"unpacking {where}")
    found: dict[str, Path] = {}
    with _damage_reported(where), gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as members:
            for member in members:
                base = member.name.rpartition("/")[2]
                if member.isfile() and base in wanted - found.keys():
                    with open(folder / base, "wb") as file:
                        shutil.copyfileobj(members.extractfile(member), file, BLOCK)
                    found[base] = folder / base
                    if len(found) == len(wanted):
                        return found
        while unpacked.read(BLOCK):  # a truncated archive shows here at the latest
            pass
    if all_needed:
        raise DataError(f"{where} has no member {', '.join(sorted(wanted - found.keys()))}: {CHECK_OR_PASS}")
    return found


def download(attempts: list[tuple[str, Path]], is_sound: Callable[[Path], bool]) -> None:
    """Save the first URL that gives a sound file under the path beside it."""
    for url, target in attempts:
        partial = target.with_name(f"{target.name}.part")
        note(f"downloading {url}")
        try:
            _save(url, partial)
            if is_sound(partial):
                os.replace(partial, target)
                return
            note("that mirror gave a damaged file")
        except (OSError, HTTPException, ValueError) as error:
            note(f"that mirror failed: {error}")
        finally:
            partial.unlink(missing_ok=True)
    names = " or ".join(dict.fromkeys(target.name for _, target in attempts))
    raise DataError(f"no mirror worked: download {names} by hand and run again with --from DIR, the folder it is in")


def _save(url: str, path: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "Mozilla/5.0"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        received = 0
        with progress(None, total=size or None, unit="B", unit_scale=True, desc=path.stem) as bar:
            while block := answer.read(BLOCK):
                file.write(block)
                received += len(block)
                bar.update(len(block))
    if size and received != size:
        raise OSError(f"{received} bytes of {size} came")
