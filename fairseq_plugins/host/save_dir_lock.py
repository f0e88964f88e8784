"""Two trainings do not write to one ``--save-dir``.

Mends: fairseq starts the second without a word, and their checkpoints replace each other's. Before each checkpoint the
lock's file is looked at again: where the directory was removed meanwhile, the lock is another one, or none.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_takes_a_directory_that_is_in_use`` passes.
"""

import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from filelock import FileLock, Timeout

from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)

LOCK_FILE, OWNER_FILE = ".training.lock", ".training.owner"
"""The file that is locked, and the one with the process id and the host name of the training that locked it last."""
ORPHANS_SECONDS = 30
"""How long the processes that load data for a training that was killed may still hold its lock."""

ASIDE = ".saving-"
"""Begins the names of folders that take what is written, until it is whole; a process that is killed leaves its own."""

_held: Dict[Tuple[int, str], Tuple[FileLock, Tuple[int, int]]] = {}
"""By process and directory: the lock, and device and inode of its file."""


def mend() -> None:
    """Wrap the host's ``load_checkpoint``, with which a training, and no other command, begins to use its directory."""
    wrap(checkpoint_utils, "load_checkpoint", _lock_and_load)
    logging.getLogger("filelock").setLevel(logging.WARNING)  # it logs even while the interpreter ends


def _lock_and_load(load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any) -> Any:
    if not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training):
        lock_save_dir(cfg.save_dir)
    return load_checkpoint(cfg, trainer, **kwargs)


def lock_save_dir(save_dir: str) -> None:
    """Lock a directory until this process ends, however it ends; the operating system sees to that.

    A file system without locks is left unlocked with a warning. What a process that was killed left half written is
    removed.

    Raises:
        ValueError: if another process holds the lock, or a symbolic link stands for its file.
    """
    key, path = (os.getpid(), os.path.abspath(save_dir)), Path(save_dir) / LOCK_FILE
    if any(pid == key[0] and identity == _identity(path) for (pid, _), (_, identity) in _held.items()):
        return
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link, which a training does not follow: remove it")
    lock = FileLock(path)
    try:
        if not os.path.isdir(save_dir):
            raise NotADirectoryError("it is no local directory")
        _acquire(lock, save_dir)
        if not isinstance(lock, FileLock):
            raise NotImplementedError("its file system knows no locks that end with their process")
        for left in Path(save_dir).glob(f"{ASIDE}*"):
            left.unlink() if left.is_symlink() else shutil.rmtree(left)
        _write_owner(save_dir)
    except (NotImplementedError, OSError) as error:
        lock.release(force=True)
        logger.warning(f"{save_dir} cannot be locked ({error}): take care that no other training writes to it")
        return
    identity = _identity(path)
    assert identity is not None
    _held[key] = lock, identity


def keep_lock(save_dir: str) -> None:
    """See to it that a directory that this process has locked still is, before something is written there.

    Where it was removed or replaced since, it is made again and locked anew.

    Raises:
        ValueError: if another process has locked it meanwhile.
    """
    key = os.getpid(), os.path.abspath(save_dir)
    lock, identity = _held.get(key, (None, None))
    if lock is None or _identity(Path(save_dir) / LOCK_FILE) == identity:
        return
    lock.release(force=True)
    del _held[key]
    logger.warning(f"{save_dir} was removed or replaced while this training ran: its checkpoints of before are gone")
    os.makedirs(save_dir, exist_ok=True)
    lock_save_dir(save_dir)


def aside_folder(save_dir: str) -> "tempfile.TemporaryDirectory[str]":
    """A new folder of this process alone in a directory, where a file is written until it is whole."""
    return tempfile.TemporaryDirectory(prefix=ASIDE, dir=save_dir, ignore_cleanup_errors=True)


def _identity(path: Path) -> Optional[Tuple[int, int]]:
    """Device and inode of a file, or None where there is none; those of a locked file are not given to another."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _acquire(lock: FileLock, save_dir: str) -> None:
    try:
        lock.acquire(timeout=0)
        return
    except Timeout:
        owner = _read_owner(save_dir)
    if owner is not None and _has_ended(*owner):
        logger.info(f"{save_dir}: waiting for the last processes of a training that was killed")
        try:
            lock.acquire(timeout=ORPHANS_SECONDS)
            return
        except Timeout:
            owner = _read_owner(save_dir)
    name = "another training" if owner is None else "the training with process id {} on host {}".format(*owner)
    raise ValueError(
        f"{name} writes to --save-dir {save_dir}: wait until it has ended, end it, or give another --save-dir"
    )


def _write_owner(save_dir: str) -> None:
    with aside_folder(save_dir) as aside:
        written = Path(aside, OWNER_FILE)
        written.write_text(f"{os.getpid()} {socket.gethostname()}\n")
        os.replace(written, Path(save_dir) / OWNER_FILE)


def _read_owner(save_dir: str) -> Optional[Tuple[int, str]]:
    """Process id and host name, or None where nobody has written them yet."""
    try:
        pid, host = (Path(save_dir) / OWNER_FILE).read_text().split()
        return int(pid), host
    except (OSError, ValueError):
        return None


def _has_ended(pid: int, host: str) -> bool:
    """Whether a process is known to have ended; those of other hosts are not."""
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
