"""Files and folders that a command writes: types of arguments, which refuse what could not be written.

The check stands at the reading of arguments, before the work whose result would be lost.
"""

import os
from argparse import ArgumentTypeError
from pathlib import Path


def output_file(text: str) -> Path:
    """A file in a folder that exists.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{path}: this is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{path}: {path.parent} is no directory: make it first")
    _check_writable(path.parent, name=path)
    return path


def output_folder(text: str) -> Path:
    """A folder, which need not exist yet.

    Raises:
        ArgumentTypeError: if it could not be made, or nothing could be written there.
    """
    path = Path(text)
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ArgumentTypeError(f"{path}: {existing} is a file: give a folder")
    _check_writable(existing, name=path)
    return path


def picture_file(text: str) -> Path:
    """A file for a picture, in a folder that exists; its suffix is a format that can be drawn.

    Raises:
        ArgumentTypeError: if it could not be written.
    """
    from matplotlib.figure import Figure  # imported here, when the host's debug logging is off

    path = output_file(text)
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise ArgumentTypeError(f"{path}: give a name that ends in one of .{', .'.join(sorted(formats))}")
    return path


def _check_writable(folder: Path, *, name: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{name}: nothing can be written to {folder}: give another folder")
