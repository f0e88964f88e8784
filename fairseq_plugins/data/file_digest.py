"""What tells whether a file is the same as another, or as it was in the folder's first use: a digest of its bytes."""

import hashlib
import json
import time
from functools import cache
from pathlib import Path
from typing import Dict

DIGESTS_FILE = "digests.json"
"""Beside dictionaries and binarised text: the digest of each of these files by its name.

data-prep writes it with them, and the first training where there is none. It is a file of its own since ``text.json``
belongs to how raw text is read, and a folder of sentence pairs has none.
"""
RECENT_SECONDS = 2
"""A file that was changed so lately may change again without another time of change."""


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits; a file that has not changed is read once in a process."""
    status = path.stat()
    read = _read_digest if time.time() - status.st_mtime > RECENT_SECONDS else _read_digest.__wrapped__
    return read(str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _read_digest(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path) -> None:
    """Refuse a dictionary or binarised text that is not as ``digests.json`` beside it has it; others are let pass.

    Raises:
        ValueError: if it differs, or ``digests.json`` cannot be read.
    """
    known = read_digests(path.parent)
    if path.name in known and path.is_file() and known[path.name] != file_digest(path):
        raise ValueError(
            f"{path} is not as it was when {path.parent / DIGESTS_FILE} was written: it is damaged or was made with "
            f"another dictionary; copy or prepare the folder again, or remove {DIGESTS_FILE} if it was meant to change"
        )


def read_digests(folder: Path) -> Dict[str, str]:
    """What ``digests.json`` tells of a folder's files, by their names; nothing where there is none.

    Raises:
        ValueError: if it cannot be read.
    """
    path = folder / DIGESTS_FILE
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: copy it again, or remove it")
    return found
