"""Checkpoints are written aside and renamed, so that a training that is killed leaves no half of one.

Mends: fairseq copies the checkpoint that it has just written onto checkpoint_last.pt and checkpoint_best.pt in place. A
new one it writes aside, by a name that another process may use as well, or a symbolic link may have.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_copies_in_place`` passes.
"""

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_plugins.host.save_dir_lock import aside_folder, keep_lock
from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap fairseq's ``torch_persistent_save`` and ``PathManager.copy``."""
    wrap(checkpoint_utils, "torch_persistent_save", _save_and_rename)
    wrap(PathManager, "copy", _copy_and_rename)


def _save_and_rename(save: Callable[..., None], obj: Any, filename: str, async_write: bool = False) -> None:
    if async_write or not PathManager.supports_rename(filename):
        save(obj, filename, async_write=async_write)
        return
    with _replaced(filename) as aside:
        save(obj, aside)


def _copy_and_rename(copy: Callable[..., bool], src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    if not PathManager.supports_rename(dst_path):
        return copy(src_path, dst_path, overwrite)
    with _replaced(dst_path) as aside:
        return copy(src_path, aside, overwrite=True)


@contextmanager
def _replaced(path: str) -> Iterator[str]:
    """A path aside that takes the name ``path`` at the end of the block.

    Raises:
        ValueError: if another training has locked the folder since this one did.
    """
    folder, name = os.path.split(os.path.abspath(path))
    keep_lock(folder)
    with aside_folder(folder) as aside:
        yield os.path.join(aside, name)
        os.replace(os.path.join(aside, name), path)
