"""A training that was resumed goes on with what validation had decided.

Mends: the host saves before ``--lr-scheduler reduce_lr_on_plateau`` hears of the epoch's loss, keeps neither how many
epochs were bad nor what ``--patience`` counts, and so goes on at another rate and for longer.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_forgets_what_validation_decided`` passes.
"""

import os
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer

from fairseq_plugins.host.wrapping import wrap

PATIENCE = "patience"
"""In the extra state of a checkpoint: what ``--patience`` has counted."""
_COUNTED = ("best", "num_runs")


def mend() -> None:
    """Wrap the host's writing and reading of a training's state, and of the plateau's."""
    wrap(Trainer, "save_checkpoint", _save_patience)
    wrap(checkpoint_utils, "load_checkpoint", _go_on)
    wrap(ReduceLROnPlateauLRSchedule, "state_dict", _save_bad_epochs)
    wrap(ReduceLROnPlateauLRSchedule, "load_state_dict", _load_bad_epochs)


def _patience() -> List[Dict[str, Any]]:
    """Where the host counts: attributes of a function of its program, which ``python -m`` names ``__main__``."""
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
