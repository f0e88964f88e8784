"""Files of a corpus: checksums, lines of plain and compressed files, downloads, archives."""

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import shutil
import tarfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError

from .lines import PASS_OTHERS, DataError, Row, aligned, decode_lines, note, progress

BLOCK = 1 << 20

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a full disk

TIMEOUT = 60  # seconds without a byte
SLOWEST = 1000  # bytes a second, over each TIMEOUT
RETRIES = 2  # for an address that may answer later
PAUSE = 1.0  # seconds before a retry
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses that are worth a retry

# NotImplementedError and RuntimeError: a flipped bit in a .zip file may look like an unknown compression or encryption
DAMAGE = (
    *(EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
    *(NotImplementedError, RuntimeError),
)


@dataclass(frozen=True)
class Text:
    """A file that a corpus reads. ``str`` gives its name in messages."""

    path: Path
    name: str = ""  # of an unpacked file: MEMBER in ARCHIVE

    def __str__(self) -> str:
        return self.name or str(self.path)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def damage_reported(where: object) -> Iterator[None]:
    """Turn the errors that a damaged archive raises into a DataError with a remedy."""
    try:
        yield
    except (*DAMAGE, OSError) as error:
        # A decompressor gives no errno, a seek beyond the file EINVAL. Others come from the disk.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{where} is truncated or damaged ({error}): {PASS_OTHERS}") from None


# Each compression by the ending of file names
OPEN: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, "": open}


@contextmanager
def opened(text: Text) -> Iterator[IO[bytes]]:
    """Open a file for reading. It is decompressed if its name ends in ``.gz``, ``.bz2`` or ``.xz``."""
    with damage_reported(text), OPEN.get(text.path.suffix, open)(text.path, "rb") as file:
        yield file


def check_digest(found: str, expected: str, where: object) -> None:
    """DataError unless ``found`` is the expected SHA-256 of the content of ``where``."""
    if found != expected:
        raise DataError(f"{where} has SHA-256 {found}, expected {expected}: {PASS_OTHERS}")


def check_contents(texts: Mapping[str, Text], expected: Mapping[str, str]) -> None:
    """DataError unless the texts' content, after decompression, has the ``expected`` SHA-256, where there is one."""
    for name, text in texts.items():
        if name in expected:
            found = hashlib.sha256()
            with opened(text) as file:
                while block := file.read(BLOCK):
                    found.update(block)
            check_digest(found.hexdigest(), expected[name], text)


def file_lines(text: Text) -> Iterator[str]:
    """Cleaned lines of a file, decompressed as needed."""
    with opened(text) as file:
        yield from decode_lines(file, text)


def aligned_files(source: Text, target: Text) -> Iterator[Row]:
    """The pairs of lines of two files."""
    return aligned(file_lines(source), file_lines(target), source, target)


def counted(rows: Iterable[Row], expected: int, name: object) -> Iterator[Row]:
    """``rows``. DataError at the end unless their number is as expected."""
    count = 0
    for row in rows:
        count += 1
        yield row
    if count != expected:
        raise DataError(f"{name} has {count} lines, expected {expected}: {PASS_OTHERS}")


def text_file(folder: Path, name: str) -> Path | None:
    """The file ``name`` in the folder, compressed or not, or None. DataError if there are several."""
    found = [path for end in OPEN if (path := folder / f"{name}{end}").is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0].name} and {found[1].name}: keep the right one")
    return found[0] if found else None


def is_sound(path: Path) -> bool:
    """Whether all members of a .zip file have the right checksum, or another file decompresses to its end."""
    try:
        with damage_reported(path):
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    return archive.testzip() is None
            with gzip.open(path) as file:
                while file.read(BLOCK):
                    pass
    except DataError:
        return False
    return True


# Downloads


def mirror_urls(mirrors: Iterable[str], name: str) -> list[str]:
    """URLs of a file in the mirrors' folders. A mirror may also be the file's own URL."""
    return [f"{mirror.removesuffix(f'/{name}').rstrip('/')}/{name}" for mirror in mirrors]


def try_download(attempts: Iterable[tuple[str, Path]], is_sound: Callable[[Path], bool]) -> bool:
    """Download from the first (URL, path) that gives a sound file. Returns whether there is one."""
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
            if isinstance(error, OSError) and error.errno in FULL:  # another mirror would not help
                raise
            note(f"that mirror failed: {error}")
        finally:
            partial.unlink(missing_ok=True)
    return False


def no_mirror_worked(names: str) -> DataError:
    """The error when all downloads failed."""
    return DataError(f"no mirror worked: download {names} by hand and run again with --from DIR, the folder it is in")


def download(mirrors: Iterable[str], path: Path, is_sound: Callable[[Path], bool] = is_sound) -> None:
    """Download the file that ``path`` names from the first mirror that gives a sound one. DataError if none does."""
    if not try_download([(url, path) for url in mirror_urls(mirrors, path.name)], is_sound):
        raise no_mirror_worked(path.name)


def _save_with_retries(url: str, path: Path) -> None:
    for _ in range(RETRIES):
        try:
            return _save(url, path)
        except OSError as error:
            if error.errno in FULL or isinstance(error, HTTPError) and error.code not in TRANSIENT:
                raise
            note(f"trying again: {error}")
            time.sleep(PAUSE)
    _save(url, path)


def _save(url: str, path: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "Mozilla/5.0"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        received = received_before = 0
        looked_at = time.monotonic()
        with progress(None, total=size or None, unit="B", unit_scale=True, desc=path.stem) as bar:
            while block := answer.read1(BLOCK):  # read1 returns what has arrived, so that progress and speed are seen
                file.write(block)
                received += len(block)
                bar.update(len(block))
                if (seconds := time.monotonic() - looked_at) >= TIMEOUT:
                    if received - received_before < SLOWEST * seconds:
                        raise TimeoutError(f"{received - received_before:,} bytes in {seconds:.0f} seconds")
                    looked_at, received_before = time.monotonic(), received
    if size and received != size:
        raise OSError(f"{received} bytes of {size} came")


# Archives


def unpack(archive: Text, wanted: set[str], folder: Path, *, all_needed: bool = True) -> dict[str, Text]:
    """Unpack the ``wanted`` members of a .tgz or .zip archive into ``folder``.

    ``wanted`` holds paths of members or ends of their paths. All members must exist if ``all_needed``.
    """
    note(f"unpacking {archive}")
    found: dict[str, Text] = {}
    members = _zip_members if archive.path.suffix == ".zip" else _tar_members
    with damage_reported(archive):
        for path, file in members(archive.path):
            member = next((each for each in wanted - found.keys() if f"/{path}".endswith(f"/{each}")), None)
            if member:
                name = member.rpartition("/")[2]
                found[member] = Text(folder / name, f"{name} in {archive}")
                with open(folder / name, "wb") as target:
                    shutil.copyfileobj(file, target, BLOCK)
    if all_needed and wanted != found.keys():
        raise DataError(f"{archive} has no member {', '.join(sorted(wanted - found.keys()))}: {PASS_OTHERS}")
    return found


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as members:
            for member in members:
                if member.isfile():
                    yield member.name, members.extractfile(member)
        while unpacked.read(BLOCK):  # finds a truncated archive whose members are complete
            pass


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                with members.open(member) as file:
                    yield member.filename, file
