"""A training that was resumed goes on with the batches that it would have had.

Patches: fairseq cuts a corpus into batches once per process, seeded by the epoch in which it started, so that a
training that is resumed goes on with other batches; with --update-epoch-batch-itr, set here, it cuts them anew every
epoch.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as fairseq's ``DatasetConfig.update_epoch_batch_itr`` is not true by default.
"""

import logging
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.logging.meters import StopwatchMeter
from fairseq.models.ema.ema import EMA
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_plugins.fairseq_patches.patching import wrap


def patch_exact_resume() -> None:
    """Wrap fairseq's ``call_main``, through which all of its commands run."""
    wrap(distributed_utils, "call_main", _cut_batches_every_epoch)


def _cut_batches_every_epoch(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    cfg.dataset.update_epoch_batch_itr = True
    return call_main(cfg, *args, **kwargs)


# A run that cannot resume inside an epoch, because its batches are others, says so.
#
# Patches: with another ``--task`` fairseq resumes at batch n of a stream that stopped after n batches of sentences, or
# the
# reverse. Where the epoch has become shorter than what was trained of it, it asks to report the error, before a task
# can
# compare the rows of a checkpoint with its own.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_asks_to_report`` passes.


def patch_resumed_epoch() -> None:
    """Wrap fairseq's ``EpochBatchIterator.load_state_dict`` and ``Trainer.load_checkpoint``."""
    wrap(EpochBatchIterator, "load_state_dict", _name_the_batches)
    wrap(Trainer, "load_checkpoint", _check_task)


def _name_the_batches(
    load_state_dict: Callable[..., None], iterator: EpochBatchIterator, state_dict: Dict[str, Any]
) -> None:
    """Take the place in the epoch from a checkpoint.

    Raises:
        ValueError: if the epoch has not as many batches.
    """
    try:
        load_state_dict(iterator, state_dict)
    except RuntimeError as error:
        if "dataloader mismatch" not in str(error):
            raise
        raise ValueError(
            f"the checkpoint stopped inside an epoch after {state_dict['iterations_in_epoch']:,} batches, and now an "
            "epoch has no more than those: use the same data, --batch-size or --max-tokens, and number of processes, "
            "or train on from these weights, beginning at epoch 1 again, with --reset-dataloader"
        ) from None


def _check_task(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]], trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Optional[Dict[str, Any]]:
    """Read a checkpoint.

    Raises:
        ValueError: if it stopped inside an epoch of a task that keeps its place in a stream, and this one does not, or
            the reverse.
    """
    state = load_checkpoint(trainer, filename, *args, **kwargs)
    cfg = trainer.cfg.checkpoint
    if state is None or cfg.reset_dataloader or filename == cfg.finetune_from_model:
        return state
    keeping = {task.__name__ for task in TASK_REGISTRY.values() if hasattr(task, "get_checkpoint_dict")}
    is_inside = state["train_iterator"]["iterations_in_epoch"] > 0
    if is_inside and keeping & state.keys() != keeping & {type(trainer.task).__name__}:
        raise ValueError(
            f"{filename} stopped inside an epoch of another --task, whose batches are not this one's: give the --task "
            "that it was trained with, or train on from these weights, beginning at epoch 1 again, with "
            "--reset-dataloader"
        )
    return state


# A training that is resumed inside an epoch logs how long it has been running.
#
# Patches: fairseq's clock ``wall`` stands still from then on, because loaded meters have not been started.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_lets_the_clock_stand`` passes.


def patch_resumed_clock() -> None:
    """Wrap fairseq's ``metrics.load_state_dict``."""
    wrap(metrics, "load_state_dict", _start_the_clock)


def _start_the_clock(load_state_dict: Callable[..., None], state_dict: Dict[str, Any]) -> None:
    load_state_dict(state_dict)
    clock = metrics.get_meter("default", "wall")
    if isinstance(clock, StopwatchMeter):
        clock.start()


# A training that was resumed goes on with what validation had decided.
#
# Patches: fairseq saves before ``--lr-scheduler reduce_lr_on_plateau`` hears of the epoch's loss, keeps neither how
# many epochs were bad nor what ``--patience`` counts, and so goes on at another rate and for longer.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_forgets_what_validation_decided`` passes.


PATIENCE = "patience"
"""In the extra state of a checkpoint: what ``--patience`` has counted."""
_COUNTED = ("best", "num_runs")


def patch_resumed_validation() -> None:
    """Wrap fairseq's writing and reading of a training's state, and of the plateau's."""
    wrap(Trainer, "save_checkpoint", _save_patience)
    wrap(checkpoint_utils, "load_checkpoint", _go_on)
    wrap(ReduceLROnPlateauLRSchedule, "state_dict", _save_bad_epochs)
    wrap(ReduceLROnPlateauLRSchedule, "load_state_dict", _load_bad_epochs)


def _patience() -> List[Dict[str, Any]]:
    """Where fairseq counts: attributes of a function of its program, which ``python -m`` names ``__main__``."""
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


def _save_bad_epochs(
    state_dict: Callable[..., Dict[str, Any]], scheduler: ReduceLROnPlateauLRSchedule
) -> Dict[str, Any]:
    return {**state_dict(scheduler), "num_bad_epochs": scheduler.lr_scheduler.num_bad_epochs}


def _load_bad_epochs(
    load_state_dict: Callable[..., None], scheduler: ReduceLROnPlateauLRSchedule, state: Dict[str, Any]
) -> None:
    load_state_dict(scheduler, state)
    scheduler.lr_scheduler.num_bad_epochs = state.get("num_bad_epochs", 0)


def _go_on(
    load_checkpoint: Callable[..., Tuple[Optional[Dict[str, Any]], EpochBatchIterator]],
    cfg: CheckpointConfig,
    trainer: Trainer,
    **options: Any,
) -> Tuple[Optional[Dict[str, Any]], EpochBatchIterator]:
    """Read a checkpoint; the counts of patience, and at the end of an epoch the plateau's step, are made up for."""
    last = os.path.join(cfg.save_dir, f"checkpoint_last{trainer.checkpoint_suffix}.pt")
    starts_elsewhere = cfg.finetune_from_model is not None and getattr(cfg, "continue_once", None) is None
    begins_anew = starts_elsewhere and not os.path.exists(last)
    state, iterator = load_checkpoint(cfg, trainer, **options)
    if state is None or begins_anew:
        return state, iterator
    if PATIENCE in state and not (cfg.reset_optimizer or cfg.reset_meters):
        for counted in _patience():
            counted.update(state[PATIENCE])
    at_end_of_epoch = state["train_iterator"]["iterations_in_epoch"] == 0
    keeps_rate = not (cfg.reset_optimizer or cfg.reset_lr_scheduler or cfg.reset_dataloader)
    scheduler = trainer.lr_scheduler
    if isinstance(scheduler, ReduceLROnPlateauLRSchedule) and at_end_of_epoch and keeps_rate:
        scheduler.lr_scheduler.last_epoch = iterator.epoch - 1
        trainer.lr_step(iterator.epoch - 1, state["val_loss"])
    return state, iterator


# A training that ended by ``--patience`` or ``--max-update`` is not trained on when it is started again.
#
# Patches: fairseq looks only after an update, and so makes one more, or one more epoch.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_trains_on`` passes.


logger = logging.getLogger(__name__)

_NO_EPOCH = -1  # 0 is without limit


def patch_finished_training() -> None:
    """Wrap fairseq's reading of a training's state."""
    wrap(checkpoint_utils, "load_checkpoint", _train_no_more)


def _train_no_more(
    load_checkpoint: Callable[..., Tuple[Optional[Dict[str, Any]], EpochBatchIterator]],
    cfg: CheckpointConfig,
    trainer: Trainer,
    **options: Any,
) -> Tuple[Optional[Dict[str, Any]], EpochBatchIterator]:
    state, iterator = load_checkpoint(cfg, trainer, **options)
    reason = _why_finished(state or {}, cfg, trainer)
    if reason is not None:
        logger.info(f"the training in {cfg.save_dir} is finished: {reason}; to train on, give a larger one")
        trainer.cfg.optimization.max_epoch = _NO_EPOCH
    return state, iterator


def _why_finished(state: Dict[str, Any], cfg: CheckpointConfig, trainer: Trainer) -> Optional[str]:
    num_updates, max_update = trainer.get_num_updates(), trainer.cfg.optimization.max_update
    if 0 < max_update <= num_updates:
        return f"it has made {num_updates} updates, --max-update is {max_update}"
    num_bad = 0 if cfg.reset_optimizer or cfg.reset_meters else state.get(PATIENCE, {}).get("num_runs", 0)
    if num_updates > 0 and 0 < cfg.patience <= num_bad:
        return f"the last {num_bad} validations were no better, --patience is {cfg.patience}"
    return None


# An exponential moving average (``--store-ema``) decays a matrix once an update, under however many names it stands.
#
# Patches: fairseq goes through the names of a model's weights, so that a matrix that two parts share, such as a tied
# embedding, decays twice. Columns that a model keeps at one length have it in its average, too.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_decays_a_shared_matrix_twice`` passes.


def patch_ema() -> None:
    """Wrap the update of fairseq's ``EMA``."""
    wrap(EMA, "_step_internal", _step_once_a_weight)


class _FirstNames:
    """What fairseq takes for a model: each weight under its first name alone."""

    def __init__(self, weights: Mapping[str, Any], first_names: Mapping[str, str]):
        self._weights = {name: weight for name, weight in weights.items() if first_names.get(name, name) == name}

    def state_dict(self) -> Dict[str, Any]:
        return self._weights


def _step_once_a_weight(step: Callable[..., None], ema: EMA, new_model: nn.Module, *args: Any, **kwargs: Any) -> None:
    weights = new_model.state_dict()
    first_names = _first_names(weights)
    for name, first in first_names.items():
        if first in ema.fp32_params:
            ema.fp32_params[name] = ema.fp32_params[first]
    step(ema, _FirstNames(weights, first_names), *args, **kwargs)
    norm = getattr(ema.get_model(), "column_norm", None)
    if norm is not None:
        for weight in norm.weights:
            norm.normalise_(weight.data)


def _first_names(weights: Mapping[str, Any]) -> Dict[str, str]:
    """By the name of each tensor that has elements the first name under which it stands."""
    names: Dict[Tuple[Any, ...], str] = {}
    return {
        name: names.setdefault((weight.data_ptr(), weight.shape, weight.stride(), weight.device, weight.dtype), name)
        for name, weight in weights.items()
        if isinstance(weight, Tensor) and weight.numel() > 0
    }
