"""Runs tests with each set of kernels that a machine without a GPU has."""

import pytest

from fairseq_plugins.ops import kernels


@pytest.fixture(params=["cpu", "plain"])
def kernel_set(request, monkeypatch):
    """The loss and the distribution take this set, whatever the device."""
    chosen = {"cpu": kernels.CPU, "plain": kernels.PLAIN}[request.param]
    for module in ("mixture_loss", "mixture_distribution"):
        monkeypatch.setattr(f"fairseq_plugins.ops.{module}.choose_kernels", lambda device, name="auto": chosen)
    return request.param
