"""A process whose memory runs out within ``--update-freq`` shares its next gradients with the others again.

Patches: fairseq's ``legacy_ddp`` shares none while gradients are accumulated, and stays so where that ends in an error,
which the trainer passes over; the other processes wait for ever.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_fairseq_alone_shares_none_after_an_error`` passes.
"""

import signal
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List
from weakref import WeakKeyDictionary

from fairseq.distributed import DistributedTimeoutWrapper, LegacyDistributedDataParallel
from fairseq.trainer import Trainer
from torch import nn

from fairseq_plugins.fairseq_patches.patching import wrap


def patch_accumulation() -> None:
    """Wrap ``no_sync`` of fairseq's ``LegacyDistributedDataParallel``."""
    wrap(LegacyDistributedDataParallel, "no_sync", _end_with_the_block)


@contextmanager
def _end_with_the_block(
    no_sync: Callable[[LegacyDistributedDataParallel], ContextManager[None]], module: LegacyDistributedDataParallel
) -> Iterator[None]:
    accumulates = module.accumulate_grads
    try:
        with no_sync(module):
            yield
    finally:
        module.accumulate_grads = accumulates


# A process whose memory ran out takes part in what all processes log of the update.
#
# Patches: fairseq sums what was logged over all processes by the names that each logged itself, and a process that ran
# out
# of memory logged none; the sums are mixed up, or the processes wait for ever.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_shares_no_names`` passes. What shares gradients in the backward
# pass, as fairseq's ``pytorch_ddp`` does, is not patched.


Logged = List[Dict[str, Any]]

_last: "WeakKeyDictionary[Trainer, Logged]" = WeakKeyDictionary()
"""What each trainer logged of its last update."""


def patch_out_of_memory() -> None:
    """Wrap the sum of what was logged over the processes of fairseq's ``Trainer``."""
    wrap(Trainer, "_fast_stat_sync_sum", _with_zeros)


def _with_zeros(
    sync: Callable[..., Any], trainer: Trainer, logged: Logged, *extra_stats: Any, ignore: bool = False
) -> Any:
    """Sum what was logged; of an update that logged nothing, zeros by the names of an earlier one.

    Raises:
        ValueError: if nothing ever was.
    """
    if logged:
        if trainer.get_model().training:
            _last[trainer] = logged[:1]
        return sync(trainer, logged, *extra_stats, ignore=ignore)
    if trainer not in _last:
        raise ValueError("memory ran out in the first batch: lower --batch-size or --max-tokens")
    return sync(trainer, _last[trainer], *extra_stats, ignore=True)


# A process whose partner hangs ends at the limit of ``--heartbeat-timeout``.
#
# Patches: fairseq sends SIGINT, which Python answers when the call that waits for the other process returns, and with
# gloo
# that is after half an hour.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as fairseq's wrapper has SIGINT as its default.


def patch_heartbeat() -> None:
    """Wrap the making of fairseq's wrapper, which says why and then sends the signal."""
    wrap(DistributedTimeoutWrapper, "__init__", _end_at_once)


def _end_at_once(
    init: Callable[..., None],
    wrapper: DistributedTimeoutWrapper,
    module: nn.Module,
    timeout: int,
    signal: signal.Signals = signal.SIGTERM,
) -> None:
    init(wrapper, module, timeout, signal)
