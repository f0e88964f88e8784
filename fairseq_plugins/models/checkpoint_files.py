"""Checkpoints that a user gives and those in a ``--save-dir``: what they hold, and errors that name them."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from fairseq import checkpoint_utils

from fairseq_plugins.flags.refusal import HOST, PACKAGE, is_raised_in

CHECKPOINTS_OF_UPDATES = r"checkpoint_\d+_(\d+)\.pt"
"""Names by ``--save-interval-updates``."""


def check_checkpoints(paths: Sequence[Union[str, Path]]) -> None:
    """Refuse paths that are no files.

    Raises:
        ValueError: for the first of them.
    """
    for path in paths:
        if not Path(path).is_file():
            wrong = (
                "is a directory" if Path(path).is_dir() else "is no file" if Path(path).exists() else "does not exist"
            )
            raise ValueError(f"{path} {wrong}: give a checkpoint, such as SAVE_DIR/checkpoint_best.pt")


@contextmanager
def naming_checkpoint(path: Union[str, Path]) -> Iterator[None]:
    """Put the name of a checkpoint before the text of a ``ValueError`` that is raised in the block and lacks it."""
    try:
        yield
    except ValueError as error:
        if str(path) in str(error) or not is_raised_in(error, PACKAGE, HOST):
            raise
        raise ValueError(f"{path}: {error}") from error


def read_state(path: Union[str, Path], overrides: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """What a checkpoint holds, with other values of some flags; a ``ValueError`` names one that is damaged."""
    with naming_checkpoint(path):
        return checkpoint_utils.load_checkpoint_to_cpu(str(path), dict(overrides or {}))


def last_epoch_checkpoints(folder: Path, number: int) -> List[Path]:
    """The checkpoints of the last epochs in a ``--save-dir``, oldest first.

    Raises:
        ValueError: if there are fewer than ``number``, or it is no folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: --last takes the epoch checkpoints of a --save-dir")
    found = checkpoint_utils.checkpoint_paths(str(folder))  # newest first
    if len(found) < number:
        raise ValueError(
            f"{folder} holds {len(found)} epoch checkpoints, fewer than {number}: train with --keep-last-epochs "
            f"{number} and without --no-epoch-checkpoints"
        )
    return [Path(str(path)) for path in reversed(found[:number])]


def checkpoints_of_updates(folder: Path) -> Dict[int, Path]:
    """The checkpoints that ``--save-interval-updates`` left in a ``--save-dir``, by their updates, oldest first.

    Raises:
        ValueError: if there is none, or it is no folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give the --save-dir of a training")
    paths = [Path(str(path)) for path in checkpoint_utils.checkpoint_paths(str(folder), pattern=CHECKPOINTS_OF_UPDATES)]
    if not paths:
        raise ValueError(
            f"{folder} has no checkpoint_EPOCH_UPDATES.pt: train with --save-interval-updates N and without "
            "--keep-interval-updates"
        )
    return {int(path.stem.rpartition("_")[2]): path for path in reversed(paths)}
