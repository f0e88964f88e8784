"""A run that cannot resume inside an epoch, because its batches are others, says so.

Mends: with another ``--task`` fairseq resumes at batch n of a stream that stopped after n batches of sentences, or the
reverse. Where the epoch has become shorter than what was trained of it, it asks to report the error, before a task can
compare the rows of a checkpoint with its own.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_asks_to_report`` passes.
"""

from typing import Any, Callable, Dict, Optional

from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
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
