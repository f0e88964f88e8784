"""Names of the files that hold reports."""

import re

MAX_NAME_LENGTH = 200
"""A file's name, with what is added while it is written, has at most 255 bytes."""


def report_name(*parts: str) -> str:
    """A file's name of the given parts, joined by underscores; what such a name should not hold becomes a dash."""
    return re.sub(r"[^\w.-]+", "-", "_".join(parts), flags=re.ASCII)[:MAX_NAME_LENGTH]
