"""Dropout masks as they are drawn."""

import pytest
import torch


@pytest.fixture
def masks(monkeypatch):
    """Every mask that is drawn, in order, with the scale of what it keeps."""
    drawn = []

    def spy(draw):
        return lambda x, p: drawn.append(draw(x, p).double() / p) or x

    for name in ("bernoulli_", "lt_"):  # of features, and of single values
        monkeypatch.setattr(torch.Tensor, name, spy(getattr(torch.Tensor, name)))
    return drawn
