"""Paths of checkpoints that a user gives, and errors that name them."""

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Sequence, Union


def check_checkpoints(paths: Sequence[Union[str, Path]]) -> None:
    """Refuse paths that are no files.

    Raises:
        ValueError: for the first of them.
    """
    for path in paths:
        if not Path(path).is_file():
            wrong = "is a directory" if Path(path).is_dir() else "does not exist"
            raise ValueError(f"{path} {wrong}: give a checkpoint, such as SAVE_DIR/checkpoint_best.pt")


@contextmanager
def naming_checkpoint(path: Union[str, Path]) -> Iterator[None]:
    """Put the name of a checkpoint before the text of a ``ValueError`` that is raised in the block and lacks it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
