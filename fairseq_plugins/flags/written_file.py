"""Files that are written aside and renamed, so that a name holds a whole file or none."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A file beside ``path`` with the same suffix, which takes its name at the end of the block.

    If the block fails, the file is removed and what ``path`` held stays.
    """
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with replaced_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
