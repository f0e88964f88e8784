"""Steps that survive an interruption: each makes a folder under another name and renames it at the end."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from .errors import DataError, note

RECORD = "step.json"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` and wait until no other run works in it; a killed run holds nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")
    except OSError as error:
        raise DataError(f"{folder}: nothing can be written there ({error.strerror}): pass another --work") from None
    with file:
        _lock(file, f"works in {folder}")
        yield


def check_writable(target: Path) -> None:
    """DataError if no folder could be made at ``target``, or none that is there be renamed."""
    if os.path.ismount(target):
        raise DataError(f"{target} is a mount point, which cannot be replaced: pass a folder in it as --dest")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent):
            pass
    except OSError as error:
        raise DataError(f"{target}: nothing can be written there ({error.strerror}): pass another --dest") from None


@contextmanager
def reserved(target: Path) -> Iterator[None]:
    """Wait until no other run makes ``target``, whatever folder it works in; a killed run holds nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.lock")
    while True:
        with open(path, "w") as file:
            _lock(file, f"makes {target}")
            if not _has_name(file, path):  # the run that was waited for has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _lock(file: IO[str], what: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(f"waiting for another run that {what}")
        fcntl.flock(file, fcntl.LOCK_EX)


def _has_name(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder that becomes ``target`` if all goes well and vanishes otherwise.

    What ``target`` held is renamed before it is removed, so that a killed run leaves it whole or not at all.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.partial-"
    for left in target.parent.iterdir():
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    partial, former = (target.with_name(f"{prefix}{os.getpid()}{end}") for end in ("", "-former"))
    partial.mkdir()
    try:
        yield partial
        if target.exists():
            target.rename(former)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def run_step(target: Path, settings: dict, make: Callable[[Path], None]) -> Path:
    """``target``, filled by ``make(folder)`` unless a complete one with the same ``settings`` is there.

    DataError if ``target`` holds something and has no record of a step.
    """
    record = json.dumps(settings, indent=1, sort_keys=True)
    if (target / RECORD).is_file() and (target / RECORD).read_bytes() == record.encode():
        note(f"{target} is already complete")
        return target
    if target.exists() and not _is_of_a_step(target):
        raise DataError(f"{target} holds something that this script did not write: delete it or pass another --work")
    with new_folder(target) as folder:
        make(folder)
        (folder / RECORD).write_text(record, encoding="utf-8")
    return target


def _is_of_a_step(folder: Path) -> bool:
    return (folder / RECORD).is_file() or (folder.is_dir() and not any(folder.iterdir()))
