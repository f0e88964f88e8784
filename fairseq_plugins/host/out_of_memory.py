"""A process whose memory ran out takes part in what all processes log of the update.

Mends: the host sums what was logged over all processes by the names that each logged itself, and a process that ran out
of memory logged none; the sums are mixed up, or the processes wait for ever.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_shares_no_names`` passes. What shares gradients in the backward pass, as the
host's ``pytorch_ddp`` does, is not mended: ``--ddp-backend legacy_ddp`` goes on.
"""

from typing import Any, Callable, Dict, List
from weakref import WeakKeyDictionary

from fairseq.trainer import Trainer

from fairseq_plugins.host.wrapping import wrap

Logged = List[Dict[str, Any]]

_last: "WeakKeyDictionary[Trainer, Logged]" = WeakKeyDictionary()
"""What each trainer logged of its last update."""


def mend() -> None:
    """Wrap the sum of what was logged over the processes of the host's ``Trainer``."""
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
