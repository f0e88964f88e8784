"""What tells whether a file is the same as another: a digest of its bytes."""

import hashlib
import time
from functools import cache
from pathlib import Path

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
