"""Files from mirrors: the first one that gives a sound file."""

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from io import FileIO
from pathlib import Path
from urllib.error import HTTPError

from .errors import DataError, note
from .lines import progress
from .sources import BLOCK

TIMEOUT = 60  # seconds without a byte, and seconds until a file begins
SLOWEST = 1000  # bytes a second, over each stretch of TIMEOUT
LONGEST = 24 * 3600  # seconds that a file takes
LARGEST = 1 << 34  # bytes of a file: six times the largest of these corpora
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
    with _at_most(TIMEOUT):  # the timeout below is for each byte
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    with answer, open(path, "wb", buffering=0) as file:
        size = int(answer.headers.get("Content-Length") or 0)
        if size > LARGEST:
            raise ValueError(f"it announces {size:,} bytes, and no file of a corpus has more than {LARGEST:,}")
        received = received_before = 0
        start = looked_at = time.monotonic()
        with progress(None, total=size or None, unit="B", unit_scale=True, desc=path.stem) as bar:
            while block := answer.read1(BLOCK):  # what has come, however little
                _write(file, block, path)
                received += len(block)
                bar.update(len(block))
                if received > LARGEST:
                    raise ValueError(f"more than {LARGEST:,} bytes came, and no file of a corpus has so many")
                now = time.monotonic()
                if now - start > LONGEST:
                    raise ValueError(f"the file has not ended after {LONGEST / 3600:.0f} hours")
                if now - looked_at >= TIMEOUT:
                    if received - received_before < SLOWEST * (now - looked_at):
                        raise TimeoutError(f"{received - received_before:,} bytes in {now - looked_at:.0f} seconds")
                    looked_at, received_before = now, received
    if size and received != size:
        raise OSError(f"{received} bytes of {size} came")


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """TimeoutError in what takes longer; where a thread other than the main one runs it, it may take any time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
