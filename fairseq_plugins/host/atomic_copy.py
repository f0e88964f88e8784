"""Checkpoints are copied aside and renamed, so that a training that is killed leaves no half of checkpoint_last.pt.

Mends: the host copies the checkpoint that it has just written onto checkpoint_last.pt and checkpoint_best.pt in place.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_copies_in_place`` passes.
"""

import os
from typing import Callable

from fairseq.file_io import PathManager

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``PathManager.copy``."""
    wrap(PathManager, "copy", _copy_and_rename)


def _copy_and_rename(copy: Callable[..., bool], src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    if not PathManager.supports_rename(dst_path):
        return copy(src_path, dst_path, overwrite)
    copied = copy(src_path, f"{dst_path}.tmp", overwrite=True)
    os.replace(f"{dst_path}.tmp", dst_path)
    return copied
