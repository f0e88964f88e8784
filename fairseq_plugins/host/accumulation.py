"""A process whose memory runs out within ``--update-freq`` shares its next gradients with the others again.

Mends: the host's ``legacy_ddp`` shares none while gradients are accumulated, and stays so where that ends in an error,
which the trainer passes over; the other processes wait for ever.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_shares_none_after_an_error`` passes.
"""

from contextlib import contextmanager
from typing import Callable, ContextManager, Iterator

from fairseq.distributed import LegacyDistributedDataParallel

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap ``no_sync`` of the host's ``LegacyDistributedDataParallel``."""
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
