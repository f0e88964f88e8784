"""Files that are written aside and renamed, so that a name holds a whole file or none."""

import io
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator

import torch


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A file beside ``path`` with the same suffix, which takes its name at the end of the block.

    If the block fails, the file is removed and what ``path`` held stays. An error of the operating system that names no
    file, such as a full disk, or the file beside it, names ``path``.
    """
    aside = _aside(path)
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        if error.filename in (None, str(aside)):
            error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Refuse a path that :func:`replaced_file` could not write, by writing an empty file beside it.

    Raises:
        ValueError: with the remedy.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{path}: this is a folder: give the name of a file")
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: this is a device or a pipe, which a file would replace: give another name")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: {path.parent} is no directory: make it first")
        aside = _aside(path)
        aside.touch()
        aside.unlink()
    except OSError as error:
        raise ValueError(f"{path}: nothing can be written there ({error.strerror}): give another name") from error


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with replaced_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_tensors(path: Path, content: Dict[str, Any]) -> None:
    """Write what torch can save; equal contents are equal files.

    It is written at once, since torch hides why a write of its own has failed, such as for want of room.
    """
    archive = io.BytesIO()
    torch.save(content, archive)
    with replaced_file(path) as aside:
        aside.write_bytes(archive.getbuffer())
