"""Adversarial margins in the loss of a mixture: values, gradients, and what they leave alone."""

import math

import pytest
import torch
from mixture_cases import assert_same, call, draw, formula, gated_or_not, outcome, plain, smoothed_or_not
from rounding_errors import EPS, rms_errors

from fairseq_plugins.ops import mixture_inputs
from fairseq_plugins.ops.mixture_nll import mixture_nll

SHAPES = [  # experts, vocabulary, tokens, width
    (1, 507, 123, 20),
    (3, 252, 60, 7),
    (20, 50, 30, 12),
    (3, 1, 10, 4),
    (1, 1, 1, 1),
]
SMALL = (3, 11, 20, 5)
EPSILONS = [0.005, 0.3]

every_epsilon = pytest.mark.parametrize("epsilon", EPSILONS)


@gated_or_not
@smoothed_or_not
@every_epsilon
@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_are_those_of_the_formula(shape, scale, epsilon, smoothing, gate_width):
    case = draw(*shape, scale=scale, gate_width=gate_width)
    options = dict(label_smoothing=smoothing, adversarial_epsilon=epsilon)
    assert_same(outcome(mixture_nll, case, **options), outcome(formula, case, **options))


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 50])
def test_the_chunk_is_no_part_of_the_result(chunk_size, smoothing, gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    options = dict(label_smoothing=smoothing, adversarial_epsilon=0.1)
    assert_same(outcome(mixture_nll, case, chunk_size=chunk_size, **options), outcome(formula, case, **options))


def test_the_bias_takes_no_part_in_the_margin():
    """With it, or without it at all: margins are the same."""
    case = draw(*SMALL)
    leaves = case.leaves(torch.float64)
    rises = []
    for bias in (None, leaves["bias"] - 50, leaves["bias"] + 50):
        logits_of_target = [
            call(mixture_nll, case, leaves, bias=bias, adversarial_epsilon=epsilon, reduction="sum").nll
            for epsilon in (0.0, 0.1)
        ]
        rises.append(logits_of_target[1] - logits_of_target[0])
    assert (rises[0] >= 0).all() and rises[0].any()
    torch.testing.assert_close(rises[1], rises[2], rtol=1e-9, atol=1e-11)


def test_experts_that_speak_against_the_target_keep_their_logits():
    latents = torch.tensor([[[3.0, 4.0], [-3.0, -4.0]]]).double()
    weight, target = torch.tensor([[0.6, 0.8], [0.0, 0.0]]).double(), torch.tensor([0])
    for priors, logit in (([[1.0, 0.0]], 5 - 0.1 * 5), ([[0.0, 1.0]], -5.0)):
        log_prior = torch.tensor(priors).double().log()
        nll = mixture_nll(latents, log_prior, weight, target, adversarial_epsilon=0.1).nll
        assert nll.item() == pytest.approx(math.log1p(math.exp(-logit)), rel=1e-6)


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_dtype", [None, torch.bfloat16])
def test_an_epsilon_of_zero_changes_no_bit(chunk_dtype, dtype, smoothing, gate_width, monkeypatch):
    case = draw(*SMALL, gate_width=gate_width, dtype=torch.bfloat16)
    options = dict(label_smoothing=smoothing, chunk_dtype=chunk_dtype)
    expected = outcome(mixture_nll, case, dtype, **options)
    monkeypatch.setattr(mixture_inputs, "adversarial_margins", None)
    found = outcome(mixture_nll, case, dtype, adversarial_epsilon=0.0, **options)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@gated_or_not
def test_nothing_is_read_of_a_token_that_is_ignored(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    expected = outcome(mixture_nll, case, adversarial_epsilon=0.1)
    ignored = case.token_weights == 0
    case.latents[ignored], case.target[ignored] = torch.nan, 10**9
    assert ignored.any() and not ignored.all()
    assert_same(outcome(mixture_nll, case, adversarial_epsilon=0.1), expected)


@every_epsilon
def test_without_reduction_each_token_has_its_loss(epsilon):
    case = draw(*SMALL)
    inputs = {name: getattr(case, name) for name in case.learned}
    options = dict(adversarial_epsilon=epsilon)
    losses = call(mixture_nll, case, inputs, reduction="none", **options)
    expected = call(formula, case, inputs, **options)
    torch.testing.assert_close(losses.nll, expected.nll, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(losses.loss.sum(), expected.loss, rtol=1e-11, atol=0)


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 10, 30])
@pytest.mark.parametrize("shape", [(1, 507, 123, 20), (3, 252, 60, 7)])
def test_float32_error_is_no_larger_than_that_of_autograd(shape, scale, smoothing, gate_width):
    options = dict(scale=scale, label_smoothing=smoothing, gate_width=gate_width, adversarial_epsilon=0.05)
    ours, theirs = [rms_errors(function, shape, torch.float32, **options) for function in (mixture_nll, plain)]
    assert all(error <= 1.25 * theirs[name] + EPS for name, error in ours.items())


@gated_or_not
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_of_16_bits_is_no_larger_than_that_of_autograd(dtype, gate_width):
    options = dict(gate_width=gate_width, adversarial_epsilon=0.05)
    ours, theirs = [rms_errors(function, (3, 252, 60, 12), dtype, **options) for function in (mixture_nll, plain)]
    assert all(error <= 1.25 * theirs[name] + EPS for name, error in ours.items())


def test_a_target_whose_probability_underflows_is_lowered_all_the_same():
    latents, weight = torch.tensor([[[20.0]]]), torch.tensor([[1.0], [30.0]])
    nll = mixture_nll(latents, torch.zeros(1, 1), weight, torch.tensor([0]), adversarial_epsilon=0.5).nll
    torch.testing.assert_close(nll, torch.tensor([600.0 - 10.0]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 2.0, float("nan")])
def test_what_is_no_share_is_refused(epsilon):
    case = draw(*SMALL)
    with pytest.raises(ValueError, match="mixture_nll: adversarial_epsilon is .*: 0 <= epsilon < 1"):
        call(mixture_nll, case, case.leaves(torch.float32), adversarial_epsilon=epsilon)
