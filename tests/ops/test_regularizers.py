"""Penalties against sums written out in numpy float64."""

import numpy as np
import pytest
import torch

from fairseq_plugins.ops.regularizers import (
    activation_regularization,
    prior_balance_by_batch,
    prior_balance_by_row,
    temporal_activation_regularization,
)

B, T, D, J = 3, 5, 7, 4


@pytest.fixture
def mask():
    """Rows of 5, 3 and 1 tokens."""
    return torch.arange(T) < torch.tensor([[5], [3], [1]])


@pytest.fixture
def output():
    return torch.randn(B, T, D)


@pytest.fixture
def prior():
    return torch.softmax(2 * torch.randn(B, T, J), dim=-1)


def squares_of_activations(output, prior, mask):
    return np.mean([h**2 for b in range(B) for t in range(T) if mask[b, t] for h in output[b, t]])


def squares_of_steps(output, prior, mask):
    steps = [output[b, t] - output[b, t - 1] for b in range(B) for t in range(1, T) if mask[b, t]]
    return np.mean(np.square(steps))


def imbalance_by_row(output, prior, mask):
    mass = (prior * mask[..., None]).sum(axis=1)
    return (J - 1) * np.var(mass, ddof=1) / np.mean(mass) ** 2


def imbalance_by_batch(output, prior, mask):
    mass = (prior * mask[..., None]).sum(axis=(0, 1))
    return (np.std(mass) / np.mean(mass)) ** 2


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "penalty, by_hand",
    [
        (activation_regularization, squares_of_activations),
        (temporal_activation_regularization, squares_of_steps),
        (prior_balance_by_row, imbalance_by_row),
        (prior_balance_by_batch, imbalance_by_batch),
    ],
)
def test_penalties_are_those_of_the_formulas(penalty, by_hand, output, prior, mask, padded):
    mask = mask if padded else torch.ones_like(mask)
    given = output if penalty in (activation_regularization, temporal_activation_regularization) else prior
    expected = by_hand(output.double().numpy(), prior.double().numpy(), mask.numpy())
    assert penalty(given, mask).item() == pytest.approx(expected, rel=1e-5 if given is prior else 1e-6)


def test_a_window_of_one_step_has_no_temporal_penalty():
    output = torch.randn(B, 1, D, requires_grad=True)
    penalty = temporal_activation_regularization(output, torch.ones(B, 1, dtype=torch.bool))
    penalty.backward()
    assert penalty.item() == 0.0
    assert torch.equal(output.grad, torch.zeros_like(output))


def test_a_step_from_padding_in_front_is_no_change():
    output = torch.tensor([[[9.0], [1.0], [3.0]]])
    mask = torch.tensor([[False, True, True]])
    assert temporal_activation_regularization(output, mask).item() == 4.0


@pytest.mark.parametrize("balance", [prior_balance_by_row, prior_balance_by_batch])
def test_a_uniform_prior_and_a_single_expert_are_balanced(balance):
    assert balance(torch.full((B, T, J), 1 / J), torch.ones(B, T)).item() == pytest.approx(0.0, abs=1e-12)
    for num_rows in (1, 3):
        prior = torch.ones(num_rows, T, 1, requires_grad=True)
        penalty = balance(prior, torch.ones(num_rows, T))
        penalty.backward()
        assert penalty.item() == 0.0 and prior.grad.isfinite().all()


def test_only_the_form_by_row_counts_differences_between_rows():
    prior = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]])
    mask = torch.ones(2, 1)
    assert prior_balance_by_batch(prior, mask).item() == pytest.approx(0.0, abs=1e-12)
    assert prior_balance_by_row(prior, mask).item() == pytest.approx(4 * 0.16 / 3 / 0.25, rel=1e-6)


@pytest.mark.parametrize("penalty", [activation_regularization, temporal_activation_regularization])
def test_padding_has_no_gradient(penalty, output, mask):
    output.requires_grad_()
    penalty(output, mask).backward()
    assert torch.equal(output.grad[~mask], torch.zeros_like(output.grad[~mask]))
    assert output.grad[mask].abs().sum() > 0


def test_half_precision_is_summed_in_float32():
    output = torch.full((B, T, D), 300.0, dtype=torch.float16)
    assert activation_regularization(output, torch.ones(B, T)).item() == pytest.approx(90_000.0)
