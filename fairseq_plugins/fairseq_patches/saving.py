"""Two trainings do not write to one ``--save-dir``.

Patches: fairseq starts the second without a word, and their checkpoints replace each other's. Before each checkpoint
the lock's file is looked at again: where the directory was removed meanwhile, the lock is another one, or none.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_fairseq_alone_takes_a_directory_that_is_in_use`` passes.
"""

import hashlib
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from fairseq import checkpoint_utils
from fairseq.data import LanguagePairDataset, MonolingualDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from filelock import FileLock, Timeout

from fairseq_plugins.data.streams import TokenStream
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.fairseq_patches.resume import PATIENCE
from fairseq_plugins.options import is_refusal

logger = logging.getLogger(__name__)

LOCK_FILE, OWNER_FILE = ".training.lock", ".training.owner"
"""The file that is locked, and the one with the process id and the host name of the training that locked it last."""
ORPHANS_SECONDS = 30
"""How long the processes that load data for a training that was killed may still hold its lock."""

ASIDE = ".saving-"
"""Begins the names of folders that take what is written, until it is whole; a process that is killed leaves its own."""

_held: Dict[Tuple[int, str], Tuple[FileLock, Tuple[int, int]]] = {}
"""By process and directory: the lock, and device and inode of its file."""


def patch_save_dir_lock() -> None:
    """Wrap fairseq's ``load_checkpoint``, with which a training, and no other command, begins to use its directory."""
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


# Checkpoints are written aside and renamed, so that a training that is killed leaves no half of one.
#
# Patches: fairseq copies the checkpoint that it has just written onto checkpoint_last.pt and checkpoint_best.pt in
# place. A
# new one it writes aside, by a name that another process may use as well, or a symbolic link may have.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_copies_in_place`` passes.


def patch_atomic_copy() -> None:
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


# A training that is refused leaves no ``crash.pt``.
#
# Patches: fairseq saves the whole training beside its checkpoints on every error of an update, also where the error
# says that a flag does not fit the model.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_saves_a_refused_training`` passes.


def patch_crash_file() -> None:
    """Wrap ``save_checkpoint`` of fairseq's ``Trainer``."""
    wrap(Trainer, "save_checkpoint", _save_unless_refused)


def _save_unless_refused(
    save_checkpoint: Callable[..., Optional[str]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[str]:
    error = sys.exception()
    if error is not None and is_refusal(error):
        return None
    try:
        return save_checkpoint(trainer, *args, **kwargs)
    except ValueError as refused:
        if error is None or not is_refusal(refused):
            raise
        logger.warning(f"no crash.pt is saved: {refused}")  # and the error itself is told
        return None


# A checkpoint that a flag names is there, or the training does not begin.
#
# ``--restore-file ''`` names none: the training begins anew.
#
# Patches: fairseq begins anew where ``--restore-file`` or ``--continue-once`` names none, or ``--finetune-from-model``
# a
# folder, and says so in the log alone.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_begins_anew`` passes.


LAST = "checkpoint_last.pt"
"""Of ``--save-dir`` and not of the working directory, and where it is missing a training begins."""


def patch_missing_checkpoint() -> None:
    """Wrap fairseq's reading of a training's state."""
    wrap(checkpoint_utils, "load_checkpoint", _check_named)


def _check_named(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, *args: Any, **options: Any
) -> Any:
    """Go on from a checkpoint.

    Raises:
        ValueError: if one is named that does not exist.
    """
    if trainer.data_parallel_rank == 0:  # which reads it for all
        flag, path = _named_checkpoint(cfg, trainer.checkpoint_suffix)
        if path is not None and not PathManager.isfile(path):
            kind = "is no file" if PathManager.exists(path) else "does not exist"
            raise ValueError(
                f"{flag} {path} {kind}: give the path of a checkpoint, such as {cfg.save_dir}/checkpoint_best.pt, or "
                f"leave {flag} out to go on from {cfg.save_dir}/{LAST}, or to begin where that does not exist"
            )
    return load_checkpoint(cfg, trainer, *args, **options)


def _named_checkpoint(cfg: CheckpointConfig, suffix: str) -> Tuple[str, Optional[str]]:
    """The flag that is heeded, and its file where it names one; the suffix is of a process that holds a part."""
    if cfg.restore_file == "":
        return "--restore-file", None
    if cfg.restore_file != LAST:
        return "--restore-file", cfg.restore_file.replace(".pt", f"{suffix}.pt")
    begins = not PathManager.exists(str(Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))))
    if not begins:
        return "--restore-file", None
    once = getattr(cfg, "continue_once", None)
    return ("--continue-once", once) if once else ("--finetune-from-model", cfg.finetune_from_model)


# ``checkpoint_best.pt`` is the best by a metric that is logged, in its direction, on one validation set.
#
# Patches: fairseq ends in a ``KeyError`` after the first epoch, with nothing saved, where ``--best-checkpoint-metric``
# is not logged; it keeps the worst checkpoint where a metric is better when higher and
# ``--maximize-best-checkpoint-metric``
# is left out; it compares with the best value of another validation set; and where ``checkpoint_last.pt`` is gone, or
# older than ``checkpoint_best.pt``, it replaces the best by a worse one.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_replaces_the_best`` passes.


VALIDATION = "validation"
"""In the extra state of a checkpoint: the metric of its best value, and a digest of the validation set."""
FIRST_SAVE = ".first-checkpoint"
"""A file of ``--save-dir`` while the first checkpoint is written; it stays where the training is killed meanwhile."""
CHECKPOINT = r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+)"
"""Names of checkpoints, up to the suffix of a process that holds a part."""

_LOSSES = {"loss": False, "ppl": False}
_CRITERIONS: Mapping[str, Callable[[Any], Mapping[str, bool]]] = {
    "CrossEntropyCriterion": lambda one: {**_LOSSES, **({"nll_loss": False} if one.sentence_avg else {})},
    "AdaptiveLoss": lambda one: {**_LOSSES, **({"nll_loss": False} if one.sentence_avg else {})},
    "LabelSmoothedCrossEntropyCriterion": lambda one: {
        **_LOSSES,
        "nll_loss": False,
        **({"accuracy": True} if one.report_accuracy else {}),
    },
}
"""The metrics that fairseq's criteria log in validation, and whether they are better when higher."""
_ANYWHERE = {**_LOSSES, "nll_loss": False, "accuracy": True, "bleu": True}
"""The direction of those that other tasks and criteria log by the same names."""


def patch_best_checkpoint() -> None:
    """Wrap fairseq's ``load_checkpoint``, by which a run begins, and its writing of checkpoints."""
    wrap(checkpoint_utils, "load_checkpoint", _check_and_load)
    wrap(checkpoint_utils, "save_checkpoint", _mark_the_first)
    wrap(Trainer, "save_checkpoint", _save_validation)


def _check_and_load(
    load_checkpoint: Callable[..., Tuple[Optional[Dict[str, Any]], EpochBatchIterator]],
    cfg: CheckpointConfig,
    trainer: Trainer,
    **options: Any,
) -> Tuple[Optional[Dict[str, Any]], EpochBatchIterator]:
    """Begin or resume a run.

    Raises:
        ValueError: if the metric is not logged, or checkpoints are there and none that the run could resume from.
    """
    validates = not trainer.cfg.dataset.disable_validation
    if validates:
        _check_metric(cfg, trainer)
    saves = not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training)
    if saves:
        _check_beginning(cfg, trainer.checkpoint_suffix)
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # of an earlier run of this process
    state, iterator = load_checkpoint(cfg, trainer, **options)
    former = (state or {}).get(VALIDATION)
    own = {"metric": cfg.best_checkpoint_metric, "digest": _digest(trainer)} if validates else former
    vars(trainer)[VALIDATION] = own
    if state is not None and former is not None and own is not None and former != own:
        is_other_set = former["digest"] != own["digest"]
        _forget(state, trainer, is_other_set=is_other_set)
        logger.info(
            f"the best {former['metric']} of the checkpoint is not compared with this run's {own['metric']}: "
            f"{'the validation set' if is_other_set else 'the metric'} is another one"
        )
    if saves and validates and own is not None and cfg.restore_file:
        _heed_best_file(cfg, trainer.checkpoint_suffix, own)
    return state, iterator


# the metric


def _check_metric(cfg: CheckpointConfig, trainer: Trainer) -> None:
    """Set the direction of the metric.

    Raises:
        ValueError: if the task and the criterion do not log it.
    """
    name, known = cfg.best_checkpoint_metric, _logged(trainer)
    if known is not None and name not in known:
        also = (
            ""
            if "bleu" in known or not isinstance(trainer.task, TranslationTask)
            else ("; BLEU, chrF and ROUGE are logged by --task scored_translation, as --eval-scorer names them")
        )
        raise ValueError(
            f"--best-checkpoint-metric {name}: validation of this task and criterion logs {', '.join(known)}: give "
            f"one of these{also}"
        )
    is_higher_better = (_ANYWHERE if known is None else known).get(name)
    if is_higher_better is None or is_higher_better == cfg.maximize_best_checkpoint_metric:
        return
    cfg.maximize_best_checkpoint_metric = is_higher_better
    if "maximize_best_checkpoint_metric" in trainer.cfg.lr_scheduler:
        trainer.cfg.lr_scheduler.maximize_best_checkpoint_metric = is_higher_better  # a copy
    direction, done = ("higher", "set") if is_higher_better else ("lower", "not heeded")
    logger.info(f"{name} is better when {direction}: --maximize-best-checkpoint-metric is {done}")


def _logged(trainer: Trainer) -> Optional[Dict[str, bool]]:
    """What validation logs, and whether it is better when higher; None where that is not known."""
    task, criterion = trainer.task, trainer.get_criterion()
    describe = _CRITERIONS.get(type(criterion).__name__)
    known = getattr(criterion, "validation_metrics", None) if describe is None else describe(criterion)
    own = getattr(task, "validation_metrics", None)
    if own is None and type(task) in (LanguageModelingTask, TranslationTask):
        own = {"bleu": True} if getattr(task.cfg, "eval_bleu", False) else {}
    return None if known is None or own is None else {**known, **own}


# where a run begins


def _check_beginning(cfg: CheckpointConfig, suffix: str) -> None:
    """A run begins anew where there is no checkpoint, or the flags say what to begin with.

    Raises:
        ValueError: with the remedy.
    """
    last = Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if cfg.restore_file != LAST or last.is_file():
        return
    there = _checkpoints(cfg.save_dir, suffix)
    if last.is_symlink():
        told = f"{last} is a link to {os.readlink(last)}, which is no file"
    elif last.exists():
        told = f"{last} is no file"
    elif there and not Path(cfg.save_dir, FIRST_SAVE).exists():
        told = f"{cfg.save_dir} holds {there[0]} and no {last.name}"
    else:
        return
    resume = f"give --restore-file {Path(cfg.save_dir, there[0])} to resume from it, " if there else ""
    raise ValueError(
        f"{told}, and a run that begins anew would replace what is there: {resume}give another --save-dir, or "
        "--restore-file '' to begin anew here"
    )


def _checkpoints(save_dir: str, suffix: str) -> List[str]:
    """Names of the checkpoints in a folder, that were written last first; the best is before others."""
    pattern = re.compile(CHECKPOINT + re.escape(suffix) + r"\.pt")
    there = [path for path in Path(save_dir).glob("checkpoint*.pt") if pattern.fullmatch(path.name) and path.is_file()]
    there.sort(key=lambda path: (path.name == f"checkpoint_best{suffix}.pt", path.stat().st_mtime), reverse=True)
    return [path.name for path in there]


def _mark_the_first(
    save_checkpoint: Callable[..., Optional[str]], cfg: CheckpointConfig, trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[str]:
    """Save; a run that is killed between the first checkpoints, of which the last comes last, may begin anew."""
    mark = Path(cfg.save_dir, FIRST_SAVE)
    is_local = not cfg.no_save and trainer.should_save_checkpoint_on_current_rank and os.path.isdir(cfg.save_dir)
    if is_local and not _checkpoints(cfg.save_dir, trainer.checkpoint_suffix):
        mark.touch()
    saved = save_checkpoint(cfg, trainer, *args, **kwargs)
    if is_local:
        mark.unlink(missing_ok=True)
    return saved


# values of one validation set


def _save_validation(
    save_checkpoint: Callable[..., Any], trainer: Trainer, filename: str, extra_state: Dict[str, Any]
) -> Any:
    own = vars(trainer).get(VALIDATION)
    return save_checkpoint(trainer, filename, extra_state if own is None else {**extra_state, VALIDATION: own})


def _forget(state: Dict[str, Any], trainer: Trainer, *, is_other_set: bool) -> None:
    """Begin to compare anew: for the best checkpoint, ``--patience``, and what else follows validation."""
    state.pop("best", None)
    state.pop(PATIENCE, None)
    state["val_loss"] = None
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    scheduler = trainer.lr_scheduler
    if isinstance(scheduler, ReduceLROnPlateauLRSchedule):
        scheduler.lr_scheduler._reset()
    optimizer: Any = trainer.optimizer
    follower = getattr(optimizer, "fp32_optimizer", optimizer)
    if is_other_set and hasattr(follower, "forget_validations"):
        follower.forget_validations()


def _heed_best_file(cfg: CheckpointConfig, suffix: str, own: Dict[str, Any]) -> None:
    """Compare with the value of ``checkpoint_best.pt``, too; say what the next one has to be better than.

    Raises:
        ValueError: if the file cannot be read.
    """
    path, counted = Path(cfg.save_dir, f"checkpoint_best{suffix}.pt"), vars(checkpoint_utils.save_checkpoint)
    metric, best = own["metric"], counted.get("best")
    if not path.is_file():
        if best is not None:
            logger.info(f"{path} is written where {metric} is better than {best}, the best of the checkpoint")
        return
    try:
        extra = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["extra_state"]
        value = extra.get("best", extra["val_loss"])
    except Exception as error:  # damage leads to errors of any kind
        raise ValueError(f"{path} cannot be read, and this run would replace it: move it away") from error
    if value is None:
        return
    if extra.get(VALIDATION, own) != own:
        logger.info(f"{path} is the best of another validation set or metric: the best of this run will replace it")
    elif best is None or (value > best if cfg.maximize_best_checkpoint_metric else value < best):
        counted["best"] = value
        logger.info(f"{path} has {metric} {value}: it is kept until a better one comes")


def _digest(trainer: Trainer) -> str:
    """That of the validation set by which the best checkpoint is chosen."""
    dataset_cfg = trainer.cfg.dataset
    subset = "valid" if dataset_cfg.combine_valid_subsets else dataset_cfg.valid_subset.split(",")[0]
    dataset: Any = trainer.task.dataset(subset)
    digest = hashlib.sha256()
    if isinstance(dataset, TokenStream):
        digest.update(dataset.tokens.numpy().tobytes())
    elif type(dataset) in (LanguagePairDataset, MonolingualDataset):
        for number in range(len(dataset)):
            item = dataset[number]
            for side in ("source", "target"):
                digest.update(b"" if item[side] is None else item[side].numpy().tobytes() + b"|")
    else:
        digest.update(str(len(dataset)).encode())
    return digest.hexdigest()
