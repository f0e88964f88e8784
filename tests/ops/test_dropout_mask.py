"""Factors of dropout: their values, their share of zeros and their independence."""

import pytest
import torch

from fairseq_plugins.ops.dropout_mask import dropout_mask

N = 200_000
RATES = [0.0, 1e-3, 0.3, 0.5, 0.65, 0.999]

every_rate = pytest.mark.parametrize("rate", RATES)


@every_rate
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_are_zero_and_what_keeps_the_mean(rate, dtype):
    mask = dropout_mask(torch.empty(0, dtype=dtype), [40, 500], rate=rate)
    assert mask.shape == (40, 500) and mask.dtype == dtype
    kept = torch.ones((), dtype=dtype) / (1 - rate)
    assert set(mask.unique().tolist()) == {kept.item(), *([0.0] if rate else [])}


@every_rate
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_share_of_zeros_is_the_rate_in_every_type(rate, dtype):
    dropped = dropout_mask(torch.empty(0, dtype=dtype), [N], rate=rate).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4.5 * (rate * (1 - rate) / N) ** 0.5)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 16, 64])
def test_neighbours_are_independent(lag):
    dropped = dropout_mask(torch.empty(0), [N], rate=0.3).eq(0)
    both = (dropped[lag:] & dropped[:-lag]).double().mean().item()
    assert both == pytest.approx(0.09, abs=5 * (0.09 * 0.91 / N) ** 0.5)


def test_a_seed_gives_one_mask_in_every_type_and_the_next_another():
    masks = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        torch.manual_seed(3)
        masks.append(dropout_mask(torch.empty(0, dtype=dtype), [500], rate=0.5).double())
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[0], masks[2])
    assert not torch.equal(dropout_mask(torch.empty(0), [500], rate=0.5).double(), masks[0])


@pytest.mark.parametrize("size", [[], [0], [3, 0, 2], [1, 1, 5]])
def test_sizes(size):
    assert dropout_mask(torch.empty(2), size, rate=0.5).shape == torch.Size(size)
