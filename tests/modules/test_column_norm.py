"""Columns that keep their length."""

import copy
import pickle

import pytest
import torch
from torch import nn

from fairseq_plugins.modules.column_norm import ColumnNorm, column_norm


def test_columns_start_at_the_length_and_keep_their_direction():
    weights = [torch.randn(7, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)]
    before = [weight.clone() for weight in weights]
    ColumnNorm(weights, length=2.5)
    for weight, old in zip(weights, before):
        torch.testing.assert_close(weight, 2.5 * old / (old**2).sum(0).sqrt(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
def test_the_weights_of_a_copy_are_held_by_it(copied):
    weight = nn.Parameter(torch.randn(7, 3))
    norm = ColumnNorm([weight], length=2.5)
    other, (matrix,) = copied((norm, [weight]))
    assert column_norm(matrix) is other and column_norm(weight) is norm and matrix is other.weights[0]
    assert other.length == 2.5 and matrix is not weight


@pytest.mark.parametrize("largest", [1.0, 1000.0])
def test_lengths_are_exact_at_the_size_of_a_vocabulary(largest):
    weight = torch.randn(50_000, 4)
    weight[:50] *= largest
    ColumnNorm([weight], length=3.0)
    assert (weight.double().norm(dim=0) / 3 - 1).abs().max() < 1e-6


def test_what_was_divided_by_brings_the_matrix_back():
    weight = torch.randn(9, 3, dtype=torch.float64)
    before = weight.clone()
    divisors = ColumnNorm([torch.randn(2, 2)], length=2.0).normalise_(weight)
    torch.testing.assert_close(weight * divisors, before, rtol=1e-12, atol=0)


def test_a_column_of_zeros_stays_one():
    weight = torch.tensor([[0.0, 3.0], [0.0, 4.0]])
    ColumnNorm([weight], length=1.0)
    torch.testing.assert_close(weight, torch.tensor([[0.0, 0.6], [0.0, 0.8]]))


def test_an_update_that_nobody_followed_is_refused():
    norm = ColumnNorm([torch.randn(3, 2)], length=1.0)
    norm.is_held = True
    norm.check_held()
    norm.is_held = False
    with pytest.raises(ValueError, match="--column-norm needs --task stateful_lm"):
        norm.check_held()
