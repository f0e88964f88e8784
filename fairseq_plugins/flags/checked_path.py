"""Paths among the arguments of a command, refused where a check refuses them."""

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Callable


def given_path(text: str) -> Path:
    """The path that was typed; one that begins with a dash is made absolute, so that no program takes it for a flag.

    Raises:
        ArgumentTypeError: if it is empty, as where a variable of the shell is not set, and would be the working folder,
            or holds what fairseq takes for a reference.
    """
    if not text:
        raise ArgumentTypeError("the path is empty")
    if "${" in text:
        raise ArgumentTypeError(f"{text}: fairseq cannot read ${{ in a path: give another name")
    path = Path(text)
    return path.absolute() if str(path).startswith("-") and text != "-" else path


def checked_path(text: str, check: Callable[[Path], None]) -> Path:
    """The path that was typed.

    Raises:
        ArgumentTypeError: if it is empty, or with what ``check`` says in its ValueError.
    """
    path = given_path(text)
    try:
        check(path)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return path
