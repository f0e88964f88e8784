"""Paths among the arguments of a command, refused where a check refuses them."""

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Callable


def checked_path(text: str, check: Callable[[Path], None]) -> Path:
    """The path that was typed.

    Raises:
        ArgumentTypeError: with what ``check`` says in its ValueError.
    """
    path = Path(text)
    try:
        check(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return path
