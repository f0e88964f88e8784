"""Patches of saving: no checkpoint is half written, or replaced by a worse one or by another run."""

import fcntl
import hashlib
import io
import logging
import os
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Union

import torch
from fairseq import checkpoint_utils
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import LanguagePairDataset, MonolingualDataset
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from fairseq_plugins.data.streams import TokenStream
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.fairseq_patches.checkpoints import saved_version
from fairseq_plugins.fairseq_patches.distributed import is_saving
from fairseq_plugins.fairseq_patches.resume import PATIENCE, Loaded
from fairseq_plugins.options import UserError

logger = logging.getLogger(__name__)

LOCK_FILE = ".training.lock"
"""The locked file. It names the process that locked it last.

The locks are POSIX's: the system releases them when the process ends, however it ends. Its data-loading processes do
not hold them.
"""
COMMAND, TRAINING = 0, 1
"""The first byte is locked by a command that starts a run and keeps its record and log, the second by the run."""

_held: Dict[str, int] = {}
"""Descriptors of the lock files of this process, by directory. Closing another one releases the lock."""
os.register_at_fork(after_in_child=_held.clear)  # a child does not inherit the locks


def patch_save_dir_lock() -> None:
    """Refuse a second run in the same ``--save-dir``.

    Problem: fairseq starts the second run without a warning, and both runs write the same files.
    Patch: wrap ``load_checkpoint`` to lock the directory, and saving, which checks the lock again, because the
        directory may have been removed meanwhile.
    Needed while ``test_fairseq_alone_takes_a_directory_that_is_in_use`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _lock_and_load)
    wrap(Trainer, "save_checkpoint", _keep_lock_and_save)


def _lock_and_load(load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any) -> Any:
    if is_saving(cfg, trainer):
        lock_for_training(os.path.abspath(cfg.save_dir))
    return load_checkpoint(cfg, trainer, **kwargs)


def lock_for_training(save_dir: str) -> None:
    """Lock a directory until this process ends, if it has not done so already.

    Raises UserError if another process has locked it.
    """
    if save_dir not in _held:
        descriptor = _lock(save_dir, first=TRAINING)
        if descriptor is not None:
            _held[save_dir] = descriptor


@contextmanager
def locked_for_command(save_dir: Path) -> Iterator[None]:
    """Keep other commands from a directory while this process starts a run there. The run has a lock of its own.

    Raises UserError if another command or training has locked it.
    """
    descriptor = _lock(save_dir, first=COMMAND)
    try:
        if descriptor is not None:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, TRAINING)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(save_dir: Union[str, Path], *, first: int) -> Optional[int]:
    """Lock the bytes from ``first`` on, and return the descriptor, or None after a warning if there are no locks."""
    descriptor = None
    try:
        descriptor = os.open(Path(save_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1 + TRAINING - first, first)
    except OSError as error:
        is_locked = descriptor is not None and isinstance(error, BlockingIOError)
        owner = os.read(descriptor, 1000).decode(errors="replace") if is_locked else ""
        if descriptor is not None:
            os.close(descriptor)
        if is_locked:
            raise UserError(
                f"{owner or 'another run'} writes to --save-dir {save_dir}: wait until it has ended, end it, or "
                "give another --save-dir"
            ) from error
        logger.warning(f"{save_dir} cannot be locked ({error}): take care that no other run writes to it")
        return None
    with suppress(OSError):  # on a full disk the lock has no name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"the run with process id {os.getpid()} on host {socket.gethostname()}".encode(), 0)
    return descriptor


def _keep_lock_and_save(
    save_checkpoint: Callable[..., Optional[str]], trainer: Trainer, filename: str, extra_state: Dict[str, Any]
) -> Optional[str]:
    keep_lock(os.path.dirname(os.path.abspath(filename)))
    return save_checkpoint(trainer, filename, extra_state)


def keep_lock(save_dir: str) -> None:
    """If a directory that this process has locked was removed or replaced, make it and lock it again.

    Raises UserError if another process has locked it meanwhile.
    """
    if save_dir not in _held:
        return
    with suppress(OSError):
        if os.path.samestat(os.fstat(_held[save_dir]), os.lstat(Path(save_dir, LOCK_FILE))):
            return
    os.close(_held.pop(save_dir))
    logger.warning(f"{save_dir} was removed or replaced while this run trained: its earlier checkpoints are gone")
    os.makedirs(save_dir, exist_ok=True)
    lock_for_training(save_dir)


TRIES, SECONDS_BETWEEN = 3, 2.5
"""How often a checkpoint that cannot be written is tried, and the seconds between, as in fairseq."""


def patch_whole_checkpoints() -> None:
    """Write and copy checkpoints aside and rename them. None is incomplete after a kill or on a full disk.

    Problem: fairseq copies the checkpoint that it has just written onto checkpoint_last.pt and checkpoint_best.pt in
        place. If a write fails, it tries twice more without emptying the file. If a later try succeeds, as on a
        disk that was full for seconds, the file is no checkpoint, and replaces the last one. If none does, the
        incomplete file stays and keeps the disk full.
    Needed while ``test_fairseq_alone_copies_in_place`` and ``test_fairseq_alone_saves_after_a_part`` pass.
    """
    wrap(PathManager, "copy", _copy_and_rename)
    wrap(checkpoint_utils, "torch_persistent_save", _save_whole)


def _copy_and_rename(copy: Callable[..., bool], src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    if not PathManager.supports_rename(dst_path):
        return copy(src_path, dst_path, overwrite)
    with renamed_to(dst_path) as aside:
        return copy(src_path, aside, overwrite=True)


@contextmanager
def renamed_to(path: str) -> Iterator[str]:
    """Yield the name of a file that is renamed to ``path`` at the end of the block. If writing fails, it is removed.

    The name is fairseq's for a new checkpoint, so that the next one replaces what a killed run has left.
    """
    aside = f"{path}.tmp"
    try:
        yield aside
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(aside)
        if error.filename in (None, aside):
            error.filename = path
        raise


def _save_whole(save: Callable[..., None], obj: Any, filename: str, async_write: bool = False) -> None:
    if async_write or not PathManager.supports_rename(filename):
        save(obj, filename, async_write)
        return
    archive = io.BytesIO()  # torch hides the reason if it cannot write a file
    torch.save(obj, archive)
    for number in range(1, TRIES + 1):
        try:
            with renamed_to(filename) as aside:
                Path(aside).write_bytes(archive.getbuffer())
            return
        except OSError as error:
            if number == TRIES:
                raise
            logger.warning(f"{filename} could not be written ({error.strerror}): next try in {SECONDS_BETWEEN} seconds")
            time.sleep(SECONDS_BETWEEN)


VALIDATION = "validation"
"""Key in the extra state of a checkpoint: the metric of its best value, and a digest of the validation set."""
_LOSSES = {"loss": False, "ppl": False, "nll_loss": False}
_DIRECTIONS = {**_LOSSES, "accuracy": True, "bleu": True}
"""Whether higher is better, for metrics of fairseq."""


def patch_best_checkpoint() -> None:
    """Make ``checkpoint_best.pt`` the best by a metric that is logged, in its direction, on one validation set.

    Problem: if ``--best-checkpoint-metric`` is not logged, fairseq ends in a ``KeyError`` after the first epoch with
        nothing saved. It keeps the worst checkpoint if higher is better and ``--maximize-best-checkpoint-metric`` is
        missing. It compares with the best value of another validation set. It replaces the best checkpoint by a worse
        one if ``checkpoint_last.pt`` is older than ``checkpoint_best.pt``. It validates weights that it does not save,
        which only a warning can tell.
    Needed while ``test_fairseq_alone_replaces_the_best`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _load_and_compare)
    wrap(Trainer, "save_checkpoint", _save_validation)


def _load_and_compare(
    load_checkpoint: Callable[..., Loaded], cfg: CheckpointConfig, trainer: Trainer, **options: Any
) -> Loaded:
    """Start or resume a run. Raises UserError if the metric is not logged, or ``checkpoint_best.pt`` cannot be read."""
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # from an earlier run in this process
    if trainer.cfg.dataset.disable_validation:
        state, iterator = load_checkpoint(cfg, trainer, **options)
        vars(trainer)[VALIDATION] = (state or {}).get(VALIDATION)
        return state, iterator
    _settle_direction(cfg, trainer)
    _warn_of_unsaved_validations(cfg, trainer)
    state, iterator = load_checkpoint(cfg, trainer, **options)
    vars(trainer)[VALIDATION] = own = {"metric": cfg.best_checkpoint_metric, "digest": _digest(trainer)}
    former = (state or {}).get(VALIDATION, own)
    if state is not None and former != own:
        is_other_set = former["digest"] != own["digest"]
        _forget_best(state, trainer, is_other_set=is_other_set)
        logger.info(
            f"the best {former['metric']} of the checkpoint is not compared with this run's {own['metric']}: "
            f"{'the validation set' if is_other_set else 'the metric'} is another one"
        )
    if is_saving(cfg, trainer) and cfg.restore_file:
        _compare_with_best_file(cfg, trainer.checkpoint_suffix, own)
    return state, iterator


def _warn_of_unsaved_validations(cfg: CheckpointConfig, trainer: Trainer) -> None:
    """Warn if fairseq validates weights that it does not save, so that the best ones may be lost."""
    updates, epochs = trainer.cfg.dataset.validate_interval_updates, trainer.cfg.dataset.validate_interval
    remedies = []
    if updates > 0 and (cfg.save_interval_updates == 0 or updates % cfg.save_interval_updates != 0):
        remedies.append(f"--save-interval-updates {updates}")
    if epochs % cfg.save_interval != 0:
        remedies.append(f"--save-interval {epochs}")
    if remedies and not cfg.no_save:
        logger.warning(
            f"weights are validated more often than saved, so checkpoint_best.pt may miss the best ones: give "
            f"{' and '.join(remedies)}"
        )


def _settle_direction(cfg: CheckpointConfig, trainer: Trainer) -> None:
    """Check that ``--best-checkpoint-metric`` is logged, and set its direction."""
    name, known = cfg.best_checkpoint_metric, _logged(trainer)
    if known is not None and name not in known:
        scored = (
            ""
            if "bleu" in known or not isinstance(trainer.task, TranslationTask)
            else "; BLEU, chrF and ROUGE are logged by --task scored_translation, as --eval-scorer names them"
        )
        raise UserError(
            f"--best-checkpoint-metric {name}: validation of this task and criterion logs {', '.join(known)}: give "
            f"one of these{scored}"
        )
    is_higher_better = (_DIRECTIONS if known is None else known).get(name)
    if is_higher_better is None or is_higher_better == cfg.maximize_best_checkpoint_metric:
        return
    cfg.maximize_best_checkpoint_metric = is_higher_better
    if "maximize_best_checkpoint_metric" in trainer.cfg.lr_scheduler:
        trainer.cfg.lr_scheduler.maximize_best_checkpoint_metric = is_higher_better  # a copy
    direction, done = ("higher", "set") if is_higher_better else ("lower", "ignored")
    logger.info(f"{name} is better when {direction}: --maximize-best-checkpoint-metric is {done}")


def _logged(trainer: Trainer) -> Optional[Mapping[str, bool]]:
    """The metrics that validation logs, and whether higher is better; None if unknown."""
    task, criterion = trainer.task, trainer.get_criterion()
    losses = getattr(criterion, "validation_metrics", None)
    if losses is None and type(criterion).__module__.startswith("fairseq."):
        losses = {**_LOSSES, **({"accuracy": True} if getattr(criterion, "report_accuracy", False) else {})}
        if type(criterion) in (CrossEntropyCriterion, AdaptiveLoss) and not criterion.sentence_avg:
            del losses["nll_loss"]  # it equals the loss
    scores = getattr(task, "validation_metrics", None)
    if scores is None and type(task) in (LanguageModelingTask, TranslationTask):
        scores = {"bleu": True} if getattr(task.cfg, "eval_bleu", False) else {}
    return None if losses is None or scores is None else {**losses, **scores}


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
    """Compare with the value of ``checkpoint_best.pt`` as well, and log what the next one must improve on."""
    path, counted = Path(cfg.save_dir, f"checkpoint_best{suffix}.pt"), vars(checkpoint_utils.save_checkpoint)
    metric, best = own["metric"], counted.get("best")
    if not path.is_file():
        if best is not None:
            logger.info(f"{path} will be written once {metric} is better than {best}, the checkpoint's best")
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
