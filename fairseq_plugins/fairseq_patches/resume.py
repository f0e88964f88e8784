"""Patches of starting runs: a stopped run resumes as if it had not been stopped."""

import logging
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.logging.meters import StopwatchMeter
from fairseq.optim.lr_scheduler import FairseqLRScheduler
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.files import LAST, newest_checkpoint
from fairseq_plugins.options import UserError, flag_of

logger = logging.getLogger(__name__)

Loaded = Tuple[Optional[Dict[str, Any]], EpochBatchIterator]
"""Result of ``load_checkpoint``: the extra state of the checkpoint, or None, and the batches to continue with."""

PATIENCE = "patience"
"""Key in the extra state of a checkpoint: the counts of ``--patience``."""
_COUNTED = ("best", "num_runs")
_NO_EPOCH = -1
"""A ``--max-epoch`` that ends a run at once; 0 means no limit."""


def patch_resumed_batches() -> None:
    """Resume with the batches that the run would have read.

    Problem: fairseq splits a corpus into batches once per process, with the epoch in which it started as the seed. A
        resumed run therefore sees other batches. With another ``--task`` fairseq resumes at batch n of a stream after n
        batches of sentences, or the reverse, so some text is read twice or never.
    Patch: wrap ``call_main`` to set ``--update-epoch-batch-itr``, with which fairseq makes new batches every epoch, and
        ``Trainer.load_checkpoint`` to refuse another task inside an epoch.
    Needed while ``DatasetConfig.update_epoch_batch_itr`` of fairseq is not true by default
    (``test_batches_are_cut_every_epoch_unlike_by_fairseq_alone``), and its checkpoints do not name the task whose
    batches they count.
    """
    wrap(distributed_utils, "call_main", _make_batches_every_epoch)
    wrap(Trainer, "load_checkpoint", _check_task)


def _make_batches_every_epoch(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    cfg.dataset.update_epoch_batch_itr = True
    return call_main(cfg, *args, **kwargs)


def _check_task(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]], trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Optional[Dict[str, Any]]:
    """Load a checkpoint. Inside an epoch, both tasks or none must keep a position in a stream."""
    state = load_checkpoint(trainer, filename, *args, **kwargs)
    cfg = trainer.cfg.checkpoint
    if state is None or cfg.reset_dataloader or filename == cfg.finetune_from_model:
        return state
    keeping = {task.__name__ for task in TASK_REGISTRY.values() if hasattr(task, "get_checkpoint_dict")}
    is_inside = state["train_iterator"]["iterations_in_epoch"] > 0
    if is_inside and keeping & state.keys() != keeping & {type(trainer.task).__name__}:
        raise UserError(
            f"{filename} stopped inside an epoch of another --task, which has other batches: give the --task that "
            "it was trained with, or --reset-dataloader to train on from its weights, beginning at epoch 1 again"
        )
    return state


def patch_resumed_clock() -> None:
    """Log how long a run has been training after it resumed inside an epoch.

    Problem: fairseq's clock ``wall`` stands still from then on, because loaded meters are not started.
    Needed while ``test_the_clock_of_loaded_meters_runs_from_then_on_unlike_by_fairseq_alone`` passes.
    """
    wrap(metrics, "load_state_dict", _start_clock)


def _start_clock(load_state_dict: Callable[..., None], state_dict: Dict[str, Any]) -> None:
    load_state_dict(state_dict)
    clock = metrics.get_meter("default", "wall")
    if isinstance(clock, StopwatchMeter):
        clock.start()


def patch_resumed_validation() -> None:
    """Resume with the decisions of past validations, and with the same scheduler.

    Problem: fairseq saves before ``--lr-scheduler reduce_lr_on_plateau`` is given the epoch's loss. It saves neither
        the scheduler's number of bad epochs nor the counts of ``--patience``. A resumed run has another learning rate
        and trains for longer. The state of another scheduler ends in a traceback.
    Needed while ``test_fairseq_alone_forgets_what_validation_decided`` passes.
    """
    wrap(Trainer, "save_checkpoint", _save_patience)
    wrap(checkpoint_utils, "load_checkpoint", _load_patience_and_step_scheduler)
    wrap(FairseqLRScheduler, "load_state_dict", _check_scheduler)
    wrap(ReduceLROnPlateauLRSchedule, "state_dict", _save_bad_epochs)
    wrap(ReduceLROnPlateauLRSchedule, "load_state_dict", _load_bad_epochs)


def _patience() -> List[Dict[str, Any]]:
    """The counts of ``--patience``, which fairseq keeps as attributes of a function of its program.

    The module of the program is called ``__main__`` under ``python -m``.
    """
    programs = [sys.modules.get(name) for name in ("__main__", "fairseq_cli.train")]
    functions = [getattr(program, "should_stop_early", None) for program in programs]
    return [vars(function) for function in functions if function is not None]


def _save_patience(
    save_checkpoint: Callable[..., Any], trainer: Trainer, filename: str, extra_state: Dict[str, Any]
) -> Any:
    for counted in _patience():
        if all(name in counted for name in _COUNTED):
            extra_state = {**extra_state, PATIENCE: {name: counted[name] for name in _COUNTED}}
    return save_checkpoint(trainer, filename, extra_state)


def _check_scheduler(
    load_state_dict: Callable[..., None], scheduler: FairseqLRScheduler, state: Dict[str, Any]
) -> None:
    if "best" not in state:
        raise UserError(
            "the checkpoint is of another --lr-scheduler: give that one, or --reset-lr-scheduler to change "
            "schedulers here"
        )
    load_state_dict(scheduler, state)


def _save_bad_epochs(
    state_dict: Callable[..., Dict[str, Any]], scheduler: ReduceLROnPlateauLRSchedule
) -> Dict[str, Any]:
    return {**state_dict(scheduler), "num_bad_epochs": scheduler.lr_scheduler.num_bad_epochs}


def _load_bad_epochs(
    load_state_dict: Callable[..., None], scheduler: ReduceLROnPlateauLRSchedule, state: Dict[str, Any]
) -> None:
    load_state_dict(scheduler, state)
    scheduler.lr_scheduler.num_bad_epochs = state.get("num_bad_epochs", 0)


def _load_patience_and_step_scheduler(
    load_checkpoint: Callable[..., Loaded], cfg: CheckpointConfig, trainer: Trainer, **options: Any
) -> Loaded:
    """Load a checkpoint and the counts of patience. At the end of an epoch, take the step that was not saved."""
    state, iterator = load_checkpoint(cfg, trainer, **options)
    if state is None or trainer.get_num_updates() == 0:  # only the weights come from the checkpoint
        return state, iterator
    if PATIENCE in state and not cfg.reset_meters:
        for counted in _patience():
            counted.update(state[PATIENCE])
    at_end_of_epoch = state["train_iterator"]["iterations_in_epoch"] == 0
    keeps_rate = not (cfg.reset_lr_scheduler or cfg.reset_dataloader)
    scheduler = trainer.lr_scheduler
    if isinstance(scheduler, ReduceLROnPlateauLRSchedule) and at_end_of_epoch and keeps_rate:
        scheduler.lr_scheduler.last_epoch = iterator.epoch - 1
        trainer.lr_step(iterator.epoch - 1, state["val_loss"])
    return state, iterator


def patch_finished_training() -> None:
    """Do not train on when a run that ended by ``--patience`` or ``--max-update`` is started again.

    Problem: fairseq checks both only after an update, so it makes one more update or epoch.
    Needed while ``test_fairseq_alone_trains_a_finished_run_on`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _stop_if_finished)


def _stop_if_finished(
    load_checkpoint: Callable[..., Loaded], cfg: CheckpointConfig, trainer: Trainer, **options: Any
) -> Loaded:
    state, iterator = load_checkpoint(cfg, trainer, **options)
    reason = _why_finished(state or {}, cfg, trainer)
    if reason is not None:
        logger.info(f"the run in {cfg.save_dir} is finished: {reason}; to train on, give a larger one")
        trainer.cfg.optimization.max_epoch = _NO_EPOCH
    return state, iterator


def _why_finished(state: Dict[str, Any], cfg: CheckpointConfig, trainer: Trainer) -> Optional[str]:
    num_updates, max_update = trainer.get_num_updates(), trainer.cfg.optimization.max_update
    if 0 < max_update <= num_updates:
        return f"it has made {num_updates} updates, --max-update is {max_update}"
    num_bad = 0 if cfg.reset_meters else state.get(PATIENCE, {}).get("num_runs", 0)
    if num_updates > 0 and 0 < cfg.patience <= num_bad:
        return f"the last {num_bad} validations were no better, --patience is {cfg.patience}"
    return None


def patch_missing_checkpoint() -> None:
    """Do not start anew by mistake. ``--restore-file ''`` does so on purpose.

    Problem: if the file of ``--restore-file`` or ``--continue-once`` does not exist, or ``--finetune-from-model`` is a
        folder, fairseq starts anew and only the log says so. So it does if ``checkpoint_last.pt`` alone is missing,
        as after a kill while the first checkpoint was saved, and replaces the others.
    Needed while ``test_a_missing_checkpoint_is_refused_and_fairseq_alone_begins_anew`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _settle_start_and_load)


def _settle_start_and_load(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **options: Any
) -> Any:
    """Load a checkpoint: the newest one if ``checkpoint_last.pt`` alone is missing."""
    resets = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")
    if cfg.finetune_from_model is not None and (given := [name for name in resets if getattr(cfg, name)]):
        raise UserError(
            f"--finetune-from-model starts with all of this reset: leave out {flag_of(given[0])}, or leave out "
            f"--finetune-from-model to resume with {flag_of(given[0])}"
        )
    suffix = trainer.checkpoint_suffix
    last = Path(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if cfg.restore_file == LAST and last.is_file():
        return load_checkpoint(cfg, trainer, **options)
    if cfg.restore_file == LAST and last.exists():
        raise UserError(
            f"{last} is no file, and a run that begins anew would replace what is there: give another --save-dir, or "
            "remove it"
        )
    flag, path, newest = "--restore-file", cfg.restore_file.replace(".pt", f"{suffix}.pt"), None
    if cfg.restore_file == LAST:
        once = getattr(cfg, "continue_once", None)
        flag, path = ("--continue-once", once) if once else ("--finetune-from-model", cfg.finetune_from_model)
        newest = None if cfg.no_save else newest_checkpoint(Path(cfg.save_dir), suffix)
    if path and trainer.data_parallel_rank == 0 and not PathManager.isfile(path):  # it reads for all processes
        kind, folder = ("is no file", path) if PathManager.exists(path) else ("does not exist", cfg.save_dir)
        raise UserError(
            f"{flag} {path} {kind}: give the path of a checkpoint, such as {folder}/checkpoint_best.pt, or "
            f"leave {flag} out to resume from {cfg.save_dir}/{LAST}, or to start anew if that does not exist"
        )
    if newest is not None and path:
        raise UserError(
            f"{newest} is there and no {last.name}: give another --save-dir, or leave {flag} out to resume from it"
        )
    if newest is not None:
        logger.warning(f"{last} is missing: the run resumes from {newest}; to begin anew, give --restore-file ''")
        cfg.restore_file = str(newest.with_name(newest.name.replace(f"{suffix}.pt", ".pt")))
    return load_checkpoint(cfg, trainer, **options)


def restored_checkpoint(flags: Any) -> Optional[Path]:
    """The checkpoint that ``fairseq-train`` will load with these flags of checkpoints, or None if it starts anew."""
    name, folder = getattr(flags, "restore_file", None), getattr(flags, "save_dir", None)
    if name is None or folder is None:
        return None
    path = Path(name)
    if name == LAST:
        start = getattr(flags, "continue_once", None) or getattr(flags, "finetune_from_model", None)
        last = Path(folder, LAST)
        path = last if last.is_file() else newest_checkpoint(Path(folder)) or Path(start or last)
    return path if path.is_file() else None
