"""Patches of saving: no checkpoint is lost, half written, or replaced by a worse one or by that of another run."""

import hashlib
import logging
import os
import re
import shutil
import socket
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
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.fairseq_patches.checkpoints import saved_version
from fairseq_plugins.fairseq_patches.resume import PATIENCE
from fairseq_plugins.options import UserError

logger = logging.getLogger(__name__)

LOCK_FILE, OWNER_FILE = ".training.lock", ".training.owner"
"""The file that is locked, and the one that names the process and machine of the run that locked it last."""
ORPHANS_SECONDS = 30
"""How long data-loading processes of a run that was killed may still hold its lock."""

ASIDE = ".saving-"
"""Prefix of temporary folders, in which files are written until they are complete. Killed processes leave theirs."""

_held: Dict[Tuple[int, str], Tuple[FileLock, Tuple[int, int]]] = {}
"""By process and directory: the lock, and the device and inode of its file."""


def patch_save_dir_lock() -> None:
    """Refuse a second run in the same ``--save-dir``.

    Problem: fairseq starts the second run without a warning, and their checkpoints replace each other.
    Patch: wrap ``load_checkpoint``, which only trainings call, to lock the directory. Each save checks the lock again,
        because the directory may have been removed meanwhile.
    Needed while ``test_fairseq_alone_takes_a_directory_that_is_in_use`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _lock_and_load)
    logging.getLogger("filelock").setLevel(logging.WARNING)  # it logs even while the interpreter ends


def _lock_and_load(load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any) -> Any:
    if not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training):
        lock_save_dir(cfg.save_dir)
    return load_checkpoint(cfg, trainer, **kwargs)


def lock_save_dir(save_dir: str) -> None:
    """Lock a directory until this process ends; the operating system releases the lock even after a crash.

    A file system without locks only gets a warning. Incomplete files of killed processes are removed.

    Raises:
        UserError: if another process holds the lock, or its file is a symbolic link.
    """
    key, path = (os.getpid(), os.path.abspath(save_dir)), Path(save_dir) / LOCK_FILE
    if any(pid == key[0] and identity == _file_identity(path) for (pid, _), (_, identity) in _held.items()):
        return
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, which a training does not follow: remove it")
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
    identity = _file_identity(path)
    assert identity is not None
    _held[key] = lock, identity


def keep_lock(save_dir: str) -> None:
    """Check before a write that a directory that this process has locked still is.

    If it was removed or replaced, it is made again and locked anew.

    Raises:
        UserError: if another process has locked it meanwhile.
    """
    key = os.getpid(), os.path.abspath(save_dir)
    lock, identity = _held.get(key, (None, None))
    if lock is None or _file_identity(Path(save_dir) / LOCK_FILE) == identity:
        return
    lock.release(force=True)
    del _held[key]
    logger.warning(f"{save_dir} was removed or replaced while this training ran: its checkpoints of before are gone")
    os.makedirs(save_dir, exist_ok=True)
    lock_save_dir(save_dir)


def aside_folder(save_dir: str) -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder of this process in a directory, in which a file is written until it is complete."""
    return tempfile.TemporaryDirectory(prefix=ASIDE, dir=save_dir, ignore_cleanup_errors=True)


def _file_identity(path: Path) -> Optional[Tuple[int, int]]:
    """Device and inode of a file, or None if it does not exist. No other file gets those of a locked file."""
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
    raise UserError(
        f"{name} writes to --save-dir {save_dir}: wait until it has ended, end it, or give another --save-dir"
    )


def _write_owner(save_dir: str) -> None:
    with aside_folder(save_dir) as aside:
        written = Path(aside, OWNER_FILE)
        written.write_text(f"{os.getpid()} {socket.gethostname()}\n")
        os.replace(written, Path(save_dir) / OWNER_FILE)


def _read_owner(save_dir: str) -> Optional[Tuple[int, str]]:
    """Process id and machine of the last owner, or None if nobody has written them yet."""
    try:
        pid, host = (Path(save_dir) / OWNER_FILE).read_text().split()
        return int(pid), host
    except (OSError, ValueError):
        return None


def _has_ended(pid: int, host: str) -> bool:
    """Whether a process is known to have ended. Processes of other machines are not."""
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def patch_atomic_copy() -> None:
    """Write checkpoints to a temporary folder and rename them, so that a killed run leaves no incomplete one.

    Problem: fairseq copies the checkpoint that it has just written onto checkpoint_last.pt and checkpoint_best.pt in
        place. It writes a new one under a temporary name that another process may use as well, or that may be a
        symbolic link.
    Patch: wrap ``torch_persistent_save`` and ``PathManager.copy``.
    Needed while ``test_fairseq_alone_copies_in_place`` passes.
    """
    wrap(checkpoint_utils, "torch_persistent_save", _save_and_rename)
    wrap(PathManager, "copy", _copy_and_rename)


def _save_and_rename(save: Callable[..., None], obj: Any, filename: str, async_write: bool = False) -> None:
    if async_write or not PathManager.supports_rename(filename):
        save(obj, filename, async_write=async_write)
        return
    with _renamed_after(filename) as aside:
        save(obj, aside)


def _copy_and_rename(copy: Callable[..., bool], src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    if not PathManager.supports_rename(dst_path):
        return copy(src_path, dst_path, overwrite)
    with _renamed_after(dst_path) as aside:
        return copy(src_path, aside, overwrite=True)


@contextmanager
def _renamed_after(path: str) -> Iterator[str]:
    """Yield a temporary path, which is renamed to ``path`` at the end of the block.

    Raises:
        UserError: if another run has locked the folder meanwhile.
    """
    folder, name = os.path.split(os.path.abspath(path))
    keep_lock(folder)
    with aside_folder(folder) as aside:
        yield os.path.join(aside, name)
        os.replace(os.path.join(aside, name), path)


LAST = "checkpoint_last.pt"
"""The default of ``--restore-file``: a file in ``--save-dir``, without which a run starts anew."""


def patch_missing_checkpoint() -> None:
    """Refuse a run that would resume from a checkpoint that does not exist. ``--restore-file ''`` names none.

    Problem: if the file of ``--restore-file`` or ``--continue-once`` does not exist, or ``--finetune-from-model`` is a
        folder, fairseq starts anew and only the log says so.
    Patch: wrap ``load_checkpoint``, which only trainings call.
    Needed while ``test_fairseq_alone_begins_anew`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _check_named)


def _check_named(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, *args: Any, **options: Any
) -> Any:
    """Load a checkpoint.

    Raises:
        UserError: if a flag names one that does not exist.
    """
    if trainer.data_parallel_rank == 0:  # it reads the file for all processes
        flag, path = _named_checkpoint(cfg, trainer.checkpoint_suffix)
        if path is not None and not PathManager.isfile(path):
            kind = "is no file" if PathManager.exists(path) else "does not exist"
            raise UserError(
                f"{flag} {path} {kind}: give the path of a checkpoint, such as {cfg.save_dir}/checkpoint_best.pt, or "
                f"leave {flag} out to resume from {cfg.save_dir}/{LAST}, or to start anew if that does not exist"
            )
    return load_checkpoint(cfg, trainer, *args, **options)


def _named_checkpoint(cfg: CheckpointConfig, suffix: str) -> Tuple[str, Optional[str]]:
    """The flag that decides, and its file if it names one.

    Args:
        cfg: flags of checkpoints.
        suffix: of the file names of this process, if each process saves a part of the model.
    """
    if cfg.restore_file == "":
        return "--restore-file", None
    if cfg.restore_file != LAST:
        return "--restore-file", cfg.restore_file.replace(".pt", f"{suffix}.pt")
    begins = not PathManager.exists(str(Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))))
    if not begins:
        return "--restore-file", None
    once = getattr(cfg, "continue_once", None)
    return ("--continue-once", once) if once else ("--finetune-from-model", cfg.finetune_from_model)


VALIDATION = "validation"
"""Key in the extra state of a checkpoint: the metric of its best value, and a digest of the validation set."""
FIRST_SAVE = ".first-checkpoint"
"""A file in ``--save-dir`` while the first checkpoint is written. It stays if the run is killed meanwhile."""
CHECKPOINT = r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+)"
"""Names of checkpoints, without the suffix of a process that saves a part of the model."""

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
"""Metrics that fairseq's criteria log in validation, and whether higher is better."""
_ANYWHERE = {**_LOSSES, "nll_loss": False, "accuracy": True, "bleu": True}
"""Whether higher is better, for metrics of these names in other tasks and criteria."""


def patch_best_checkpoint() -> None:
    """Make ``checkpoint_best.pt`` the best by a metric that is logged, in its direction, on one validation set.

    Problem: if ``--best-checkpoint-metric`` is not logged, fairseq ends in a ``KeyError`` after the first epoch with
        nothing saved. It keeps the worst checkpoint if higher is better and ``--maximize-best-checkpoint-metric`` is
        missing. It compares with the best value of another validation set. It replaces the best checkpoint by a worse
        one if ``checkpoint_last.pt`` is missing or older than ``checkpoint_best.pt``.
    Patch: wrap ``load_checkpoint``, with which a run starts, and saving.
    Needed while ``test_fairseq_alone_replaces_the_best`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _check_and_load)
    wrap(checkpoint_utils, "save_checkpoint", _save_with_mark)
    wrap(Trainer, "save_checkpoint", _save_validation)


def _check_and_load(
    load_checkpoint: Callable[..., Tuple[Optional[Dict[str, Any]], EpochBatchIterator]],
    cfg: CheckpointConfig,
    trainer: Trainer,
    **options: Any,
) -> Tuple[Optional[Dict[str, Any]], EpochBatchIterator]:
    """Start or resume a run.

    Raises:
        UserError: if the metric is not logged, or the run would start anew in a directory with checkpoints.
    """
    validates = not trainer.cfg.dataset.disable_validation
    if validates:
        _check_metric(cfg, trainer)
    saves = not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training)
    if saves:
        _check_start(cfg, trainer.checkpoint_suffix)
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # from an earlier run in this process
    state, iterator = load_checkpoint(cfg, trainer, **options)
    former = (state or {}).get(VALIDATION)
    own = {"metric": cfg.best_checkpoint_metric, "digest": _digest(trainer)} if validates else former
    vars(trainer)[VALIDATION] = own
    if state is not None and former is not None and own is not None and former != own:
        is_other_set = former["digest"] != own["digest"]
        _forget_best(state, trainer, is_other_set=is_other_set)
        logger.info(
            f"the best {former['metric']} of the checkpoint is not compared with this run's {own['metric']}: "
            f"{'the validation set' if is_other_set else 'the metric'} is another one"
        )
    if saves and validates and own is not None and cfg.restore_file:
        _compare_with_best_file(cfg, trainer.checkpoint_suffix, own)
    return state, iterator


def _check_metric(cfg: CheckpointConfig, trainer: Trainer) -> None:
    """Check ``--best-checkpoint-metric`` and set its direction.

    Raises:
        UserError: if the task and the criterion do not log it.
    """
    name, known = cfg.best_checkpoint_metric, _logged(trainer)
    if known is not None and name not in known:
        also = (
            ""
            if "bleu" in known or not isinstance(trainer.task, TranslationTask)
            else ("; BLEU, chrF and ROUGE are logged by --task scored_translation, as --eval-scorer names them")
        )
        raise UserError(
            f"--best-checkpoint-metric {name}: validation of this task and criterion logs {', '.join(known)}: give "
            f"one of these{also}"
        )
    is_higher_better = (_ANYWHERE if known is None else known).get(name)
    if is_higher_better is None or is_higher_better == cfg.maximize_best_checkpoint_metric:
        return
    cfg.maximize_best_checkpoint_metric = is_higher_better
    if "maximize_best_checkpoint_metric" in trainer.cfg.lr_scheduler:
        trainer.cfg.lr_scheduler.maximize_best_checkpoint_metric = is_higher_better  # a copy
    direction, done = ("higher", "set") if is_higher_better else ("lower", "ignored")
    logger.info(f"{name} is better when {direction}: --maximize-best-checkpoint-metric is {done}")


def _logged(trainer: Trainer) -> Optional[Dict[str, bool]]:
    """The metrics that validation logs, and whether higher is better; None if unknown."""
    task, criterion = trainer.task, trainer.get_criterion()
    describe = _CRITERIONS.get(type(criterion).__name__)
    known = getattr(criterion, "validation_metrics", None) if describe is None else describe(criterion)
    own = getattr(task, "validation_metrics", None)
    if own is None and type(task) in (LanguageModelingTask, TranslationTask):
        own = {"bleu": True} if getattr(task.cfg, "eval_bleu", False) else {}
    return None if known is None or own is None else {**known, **own}


def _check_start(cfg: CheckpointConfig, suffix: str) -> None:
    """Refuse to start anew in a directory with checkpoints, unless flags name a checkpoint to start from.

    Raises:
        UserError: with the remedy.
    """
    last = Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if cfg.restore_file != LAST or last.is_file():
        return
    there = _checkpoints(cfg.save_dir, suffix)
    if last.is_symlink():
        found = f"{last} is a link to {os.readlink(last)}, which is no file"
    elif last.exists():
        found = f"{last} is no file"
    elif there and not Path(cfg.save_dir, FIRST_SAVE).exists():
        found = f"{cfg.save_dir} holds {there[0]} and no {last.name}"
    else:
        return
    resume = f"give --restore-file {Path(cfg.save_dir, there[0])} to resume from it, " if there else ""
    raise UserError(
        f"{found}, and a run that begins anew would replace what is there: {resume}give another --save-dir, or "
        "--restore-file '' to begin anew here"
    )


def _checkpoints(save_dir: str, suffix: str) -> List[str]:
    """Names of the checkpoints in a folder: first the best one, then from the newest to the oldest."""
    pattern = re.compile(CHECKPOINT + re.escape(suffix) + r"\.pt")
    there = [path for path in Path(save_dir).glob("checkpoint*.pt") if pattern.fullmatch(path.name) and path.is_file()]
    there.sort(key=lambda path: (path.name == f"checkpoint_best{suffix}.pt", path.stat().st_mtime), reverse=True)
    return [path.name for path in there]


def _save_with_mark(
    save_checkpoint: Callable[..., Optional[str]], cfg: CheckpointConfig, trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[str]:
    """Save, and mark the directory until checkpoint_last.pt exists, so that a run killed before may start anew."""
    mark = Path(cfg.save_dir, FIRST_SAVE)
    is_local = not cfg.no_save and trainer.should_save_checkpoint_on_current_rank and os.path.isdir(cfg.save_dir)
    if is_local and not _checkpoints(cfg.save_dir, trainer.checkpoint_suffix):
        mark.touch()
    saved = save_checkpoint(cfg, trainer, *args, **kwargs)
    if is_local:
        mark.unlink(missing_ok=True)
    return saved


def _save_validation(
    save_checkpoint: Callable[..., Any], trainer: Trainer, filename: str, extra_state: Dict[str, Any]
) -> Any:
    own = vars(trainer).get(VALIDATION)
    extra_state = {**extra_state, **({} if own is None else {VALIDATION: own}), **saved_version(trainer.cfg)}
    return save_checkpoint(trainer, filename, extra_state)


def _forget_best(state: Dict[str, Any], trainer: Trainer, *, is_other_set: bool) -> None:
    """Forget the best value so far: for checkpoints, ``--patience``, the learning rate and the optimizer."""
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


def _compare_with_best_file(cfg: CheckpointConfig, suffix: str, own: Dict[str, Any]) -> None:
    """Compare with the value of ``checkpoint_best.pt`` as well, and log what the next one must improve on.

    Raises:
        UserError: if the file cannot be read.
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
        raise UserError(f"{path} cannot be read, and this run would replace it: move it away") from error
    if value is None:
        return
    if extra.get(VALIDATION, own) != own:
        logger.info(f"{path} is the best of another validation set or metric: the best of this run will replace it")
    elif best is None or (value > best if cfg.maximize_best_checkpoint_metric else value < best):
        counted["best"] = value
        logger.info(f"{path} has {metric} {value}: it is kept until a better one comes")


def _digest(trainer: Trainer) -> str:
    """Digest of the validation set that chooses the best checkpoint."""
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
