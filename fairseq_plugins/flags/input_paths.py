"""Folders that a command reads: types of arguments, which refuse what is not there."""

from pathlib import Path

from fairseq_plugins.flags.checked_path import checked_path


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
    return checked_path(text, check_data_folder)
