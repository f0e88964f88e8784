"""The files that a corpus is made of: on disk, in archives, or behind a mirror."""

import gzip
import hashlib
import io
import os
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO

from .errors import CHECK_OR_PASS, DataError, note
from .lines import decode_lines, progress

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


def read_bytes(path: Path) -> bytes:
    """Content of a file, decompressed if its name ends in ``.gz``."""
    with _damage_reported(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        return file.read()


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


def read_members(archive: IO[bytes], where: object, wanted: set[str]) -> dict[str, bytes]:
    """Contents of the members of a .tgz archive whose base names are ``wanted``; all of them must be there."""
    found: dict[str, bytes] = {}
    with _damage_reported(where), gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as members:
            for member in members:
                name = member.name.rpartition("/")[2]
                if member.isfile() and name in wanted - found.keys():
                    found[name] = members.extractfile(member).read()
                    if len(found) == len(wanted):
                        return found
        while unpacked.read(BLOCK):  # a truncated archive shows here at the latest
            pass
    raise DataError(f"{where} has no member {', '.join(sorted(wanted - found.keys()))}: {CHECK_OR_PASS}")


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
