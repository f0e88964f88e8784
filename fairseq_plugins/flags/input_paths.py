"""Folders that a command reads: types of arguments, which refuse what is not there."""

from argparse import ArgumentTypeError
from pathlib import Path


def check_data_folder(path: Path) -> None:
    """Refuse what is no folder.

    Raises:
        ValueError: with the remedy.
    """
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {wrong}: give the directory that data-prep wrote")


def data_folder(text: str) -> Path:
    """A directory with binarised text.

    Raises:
        ArgumentTypeError: if it is no folder.
    """
    path = Path(text)
    try:
        check_data_folder(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return path
