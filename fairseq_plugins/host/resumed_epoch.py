"""A training that cannot go on inside an epoch, because its batches are others, says so.

Mends: where the epoch has become shorter than what was trained of it, the host asks to report the error, before a task
can compare the rows of a checkpoint with its own.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_asks_to_report`` passes.
"""

from typing import Any, Callable, Dict

from fairseq.data.iterators import EpochBatchIterator

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``EpochBatchIterator.load_state_dict``."""
    wrap(EpochBatchIterator, "load_state_dict", _name_the_batches)


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
