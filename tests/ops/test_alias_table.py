"""Draws from an alias table have the distribution that it was built of."""

import pytest
import torch

from fairseq_plugins.ops.alias_table import AliasTable

CPU = torch.device("cpu")
WEIGHTS = {
    "Zipf": 1 / torch.arange(1, 1001, dtype=torch.double),
    "uniform": torch.ones(50),
    "with zeros": torch.tensor([0.0, 3.0, 0.0, 1.0, 1e-9, 12.0]),
    "one outcome": torch.tensor([0.3]),
    "one likely outcome": torch.tensor([1.0, 1e9, 1.0]),
    "counts": torch.tensor([7, 0, 2, 1]),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=list(WEIGHTS))
def test_columns_hold_the_probabilities(weights):
    table = AliasTable(weights)
    assert ((table.shares >= 0) & (table.shares <= 1)).all()
    held = table.shares.clone().index_add_(0, table.aliases, 1 - table.shares) / len(weights)
    torch.testing.assert_close(held, weights.double() / weights.double().sum(), rtol=1e-9, atol=1e-12)


def test_draws_have_the_distribution_by_a_chi_square_test():
    """With 100 outcomes, 99 degrees of freedom, a sum above 148.2 has a chance of 0.1 %."""
    torch.manual_seed(0)
    weights = 1 / torch.arange(1, 101, dtype=torch.double)
    drawn = AliasTable(weights).draw((400, 500), device=CPU)
    expected = drawn.numel() * weights / weights.sum()
    found = torch.bincount(drawn.flatten(), minlength=100)
    assert drawn.shape == (400, 500) and drawn.dtype == torch.long
    assert 60 < ((found - expected).square() / expected).sum() < 148.2


def test_what_has_no_weight_is_never_drawn():
    torch.manual_seed(0)
    drawn = AliasTable(torch.tensor([0.0, 1.0, 0.0, 2.0])).draw((10_000,), device=CPU)
    assert set(drawn.tolist()) == {1, 3}


def test_draws_are_those_of_the_seed():
    table = AliasTable(torch.rand(30))
    torch.manual_seed(5)
    first = table.draw((7, 3), device=CPU)
    torch.manual_seed(5)
    assert torch.equal(table.draw((7, 3), device=CPU), first)
    assert not torch.equal(table.draw((7, 3), device=CPU), first)
