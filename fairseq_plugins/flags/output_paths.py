"""Files and folders that a command writes: types of arguments, which refuse what could not be written.

The check stands at the reading of arguments, before the work whose result would be lost.
"""

import io
import os
import tempfile
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Iterable

from fairseq_plugins.flags.checked_path import checked_path
from fairseq_plugins.flags.written_file import check_replaceable


def output_file(text: str) -> Path:
    """A file in a folder that exists.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    return checked_path(text, check_replaceable)


def check_not_read(written: Path, read: Iterable[Path], *, flag: str) -> None:
    """Refuse to overwrite a file that the command reads.

    Args:
        written: the value of ``flag``.
        read: files, which need not exist yet.
        flag: for the message.

    Raises:
        ValueError: with the remedy.
    """
    if any(os.path.realpath(path) == os.path.realpath(written) or _is_one_file(path, written) for path in read):
        raise ValueError(f"{flag} {written} is read by this command: give another name")


def _is_one_file(path: Path, other: Path) -> bool:
    """Whether two names are links to one file."""
    return path.exists() and other.exists() and path.samefile(other)


def check_output_folder(path: Path) -> None:
    """Refuse a folder that could not be made, or where nothing could be written.

    Raises:
        ValueError: with the remedy.
    """
    try:
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise ValueError(f"{path}: {existing} is a file: give a folder")
        Path(tempfile.mkdtemp(dir=existing, prefix=".")).rmdir()
    except OSError as error:
        raise ValueError(f"{path}: nothing can be written there ({error.strerror}): give another folder") from error


def output_folder(text: str) -> Path:
    """A folder, which need not exist yet.

    Raises:
        ArgumentTypeError: if it could not be made, or nothing could be written there.
    """
    return checked_path(text, check_output_folder)


def picture_file(text: str) -> Path:
    """A file for a picture, in a folder that exists; its suffix is a format that can be drawn.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    from matplotlib.figure import Figure  # imported here, when the host's debug logging is off

    path = output_file(text)
    picture = Figure(figsize=(1, 1))
    picture.text(0, 0, "a")
    formats = picture.canvas.get_supported_filetypes()
    suffix = path.suffix.lstrip(".")
    if suffix not in formats:
        raise ArgumentTypeError(f"{path}: give a name that ends in one of .{', .'.join(sorted(formats))}")
    try:
        picture.savefig(io.BytesIO(), format=suffix)  # some formats need programs that may not be there
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise ArgumentTypeError(f"{path}: no picture of this format can be drawn here ({error}): take .png") from error
    return path
