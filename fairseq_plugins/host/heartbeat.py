"""A process whose partner hangs ends at the limit of ``--heartbeat-timeout``.

Mends: the host sends SIGINT, which Python answers when the call that waits for the other process returns, and with gloo
that is after half an hour.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's wrapper has SIGINT as its default.
"""

import signal
from typing import Callable

from fairseq.distributed import DistributedTimeoutWrapper
from torch import nn

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the making of the host's wrapper, which says why and then sends the signal."""
    wrap(DistributedTimeoutWrapper, "__init__", _end_at_once)


def _end_at_once(
    init: Callable[..., None],
    wrapper: DistributedTimeoutWrapper,
    module: nn.Module,
    timeout: int,
    signal: signal.Signals = signal.SIGTERM,
) -> None:
    init(wrapper, module, timeout, signal)
