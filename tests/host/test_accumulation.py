"""Accumulated gradients of the host's legacy_ddp after an error."""

from types import SimpleNamespace

import pytest
from fairseq.distributed import LegacyDistributedDataParallel

MENDED = LegacyDistributedDataParallel.no_sync
HOSTS_OWN = MENDED.__wrapped__


def accumulates_after_an_error(no_sync):
    module = SimpleNamespace(accumulate_grads=False)
    with pytest.raises(RuntimeError), no_sync(module):
        assert module.accumulate_grads
        raise RuntimeError("out of memory")
    return module.accumulate_grads


def test_gradients_are_shared_again_after_an_error():
    assert not accumulates_after_an_error(MENDED)


def test_the_host_alone_shares_none_after_an_error():
    assert accumulates_after_an_error(HOSTS_OWN)


@pytest.mark.parametrize("before", [True, False])
def test_without_an_error_it_is_as_before(before):
    module = SimpleNamespace(accumulate_grads=before)
    with MENDED(module):
        assert module.accumulate_grads
    assert module.accumulate_grads is before
