"""Files from mirrors: the first one that gives a sound file."""

import os
import time
import urllib.request
from collections.abc import Callable, Iterable
from http.client import HTTPException
from io import FileIO
from pathlib import Path
from urllib.error import HTTPError

from .errors import DataError, note
from .lines import progress
from .sources import BLOCK

TIMEOUT = 60  # seconds without a byte
RETRIES = 2  # of an address that may yet answer
PAUSE = 1.0  # seconds before each
PASSING = {408, 425, 429, 500, 502, 503, 504}  # statuses of HTTP; any other one would come again


def mirror_urls(mirrors: Iterable[str], name: str) -> list[str]:
    """Addresses of a file in the mirrors' folders; a mirror may also be the file's own address."""
    return [f"{mirror.removesuffix(f'/{name}').rstrip('/')}/{name}" for mirror in mirrors]


def try_download(attempts: Iterable[tuple[str, Path]], is_sound: Callable[[Path], bool]) -> bool:
    """Save the first URL that gives a sound file under the path beside it; whether there was one."""
    for url, target in attempts:
        partial = target.with_name(f"{target.name}.part")
        note(f"downloading {url}")
        try:
            _save_with_retries(url, partial)
            if is_sound(partial):
                os.replace(partial, target)
                return True
            note("that mirror gave a damaged file")
        except (OSError, HTTPException, ValueError) as error:
            note(f"that mirror failed: {error}")
        finally:
            partial.unlink(missing_ok=True)
    return False


def no_mirror_worked(names: str) -> DataError:
    """The error when no way was left to get the files."""
    return DataError(f"no mirror worked: download {names} by hand and run again with --from DIR, the folder it is in")


def download(attempts: list[tuple[str, Path]], is_sound: Callable[[Path], bool]) -> None:
    """As ``try_download``; DataError if no URL works."""
    if not try_download(attempts, is_sound):
        raise no_mirror_worked(" or ".join(dict.fromkeys(target.name for _, target in attempts)))


def _save_with_retries(url: str, path: Path) -> None:
    for _ in range(RETRIES):
        try:
            return _save(url, path)
        except OSError as error:
            if isinstance(error, HTTPError) and error.code not in PASSING:
                raise
            note(f"trying again: {error}")
            time.sleep(PAUSE)
    _save(url, path)


def _write(file: FileIO, block: bytes, path: Path) -> None:
    """An error of the disk is none of the mirror's."""
    left = memoryview(block)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: make room and run again, or pass another --work") from None


def _save(url: str, path: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "Mozilla/5.0"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "wb", buffering=0) as file:
        size = int(answer.headers.get("Content-Length") or 0)
        received = 0
        with progress(None, total=size or None, unit="B", unit_scale=True, desc=path.stem) as bar:
            while block := answer.read(BLOCK):
                _write(file, block, path)
                received += len(block)
                bar.update(len(block))
    if size and received != size:
        raise OSError(f"{received} bytes of {size} came")
