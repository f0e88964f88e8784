"""Folders and checkpoints that a command reads."""

import os
from pathlib import Path
from typing import List

from fairseq import utils

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


BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"
"""Names of the checkpoints in a ``--save-dir``."""


def listed_paths(text: str) -> List[str]:
    """The paths of a list that is joined by colons; a path that exists is one, whatever its name.

    Where nothing of the list exists, it is a list if all of it are names of checkpoints.
    """
    paths = utils.split_paths(text)
    is_list = any(map(os.path.exists, paths)) or all(path.endswith(".pt") for path in filter(None, paths))
    return paths if is_list else [text]


def checkpoint_of(path: Path) -> Path:
    """The path itself, or the best, else the last, checkpoint of the folder of a run; a folder without one is kept."""
    return next((path / name for name in (BEST, LAST) if (path / name).is_file()), path)
