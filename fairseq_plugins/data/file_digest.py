"""What tells whether a file is the same as another: a digest of its bytes."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
