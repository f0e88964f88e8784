"""Mixtures against float64 formulas in probability space."""

import pytest
import torch
from plain_formulas import mixture, mixture_nll_gradients, softmax

from fairseq_plugins.ops.mixture import mixture_log_probs, mixture_nll

SIZES = [(3, 252), (20, 507), (1, 123)]
NUM_TOKENS = 60


def draw(num_experts, vocab_size, scale):
    """Logits, prior scores (both exact in float32) and targets."""
    logits = (scale * torch.randn(NUM_TOKENS, num_experts, vocab_size)).double()
    scores = torch.randn(NUM_TOKENS, num_experts).double()
    return logits, scores, torch.randint(vocab_size, (NUM_TOKENS,))


def extreme(num_experts, vocab_size):
    """All experts agree on word 0 (+200); the other words (-200) have probability e^-400, zero in float32."""
    logits = torch.full((NUM_TOKENS, num_experts, vocab_size), -200.0, dtype=torch.float64)
    logits[..., 0] = 200.0
    return logits, torch.randn(NUM_TOKENS, num_experts).double(), torch.arange(NUM_TOKENS) % vocab_size


def nll_and_gradients(function, logits, scores, target, dtype):
    logits = logits.to(dtype, copy=True).requires_grad_()
    log_prior = torch.log_softmax(scores.to(dtype, copy=True), dim=-1).requires_grad_()
    nll = function(logits, log_prior, target)
    return (nll.detach(), *torch.autograd.grad(nll.sum(), [logits, log_prior]))


def published_nll(logits, log_prior, target):
    probs = (torch.softmax(logits, -1) * log_prior.exp().unsqueeze(-1)).sum(-2)
    return -torch.log(probs.gather(-1, target.unsqueeze(-1)).squeeze(-1) + 1e-8)


def plain_nll(logits, log_prior, target):
    probs = (torch.softmax(logits, -1) * log_prior.exp().unsqueeze(-1)).sum(-2)
    return -torch.log(probs.gather(-1, target.unsqueeze(-1)).squeeze(-1))


@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_log_probs_are_the_log_of_the_mixture(num_experts, vocab_size, scale):
    logits, scores, _ = draw(num_experts, vocab_size, scale)
    expected = mixture(logits, softmax(scores)).log()
    torch.testing.assert_close(
        mixture_log_probs(logits, torch.log_softmax(scores, -1)), expected, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_nll_and_gradients_match_the_formulas(num_experts, vocab_size, scale):
    logits, scores, target = draw(num_experts, vocab_size, scale)
    nll, d_logits, d_log_prior = nll_and_gradients(mixture_nll, logits, scores, target, torch.float64)
    expected_d_logits, expected_d_log_prior = mixture_nll_gradients(logits, softmax(scores), target)
    probs = mixture(logits, softmax(scores)).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(nll, -probs.log(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(d_logits, expected_d_logits, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(d_log_prior, expected_d_log_prior, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_float32_survives_logits_that_underflow_as_probabilities(num_experts, vocab_size):
    logits, scores, target = extreme(num_experts, vocab_size)
    assert plain_nll(logits.float(), torch.log_softmax(scores.float(), -1), target).isinf().any()
    nll, d_logits, d_log_prior = nll_and_gradients(mixture_nll, logits, scores, target, torch.float32)
    probs = mixture(logits, softmax(scores)).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    expected_d_logits, expected_d_log_prior = mixture_nll_gradients(logits, softmax(scores), target)
    torch.testing.assert_close(nll.double(), -probs.log(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_logits.double(), expected_d_logits, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(d_log_prior.double(), expected_d_log_prior, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_log_probs_of_extreme_logits_are_finite_and_normalised(num_experts, vocab_size):
    logits, scores, _ = extreme(num_experts, vocab_size)
    log_probs = mixture_log_probs(logits.float(), torch.log_softmax(scores.float(), -1))
    expected = mixture(logits, softmax(scores)).log()
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-6, atol=1e-6)


def test_experts_that_disagree_by_400_nats():
    logits = torch.full((2, 2, 7), -200.0)
    logits[:, 0, 0] = logits[:, 1, 1] = 200.0
    log_prior = torch.tensor([[0.25, 0.75]]).log().expand(2, 2)
    nll = mixture_nll(logits, log_prior, torch.tensor([0, 1]))
    torch.testing.assert_close(nll, -torch.tensor([0.25, 0.75]).log(), rtol=1e-6, atol=0)


def test_gradcheck():
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([6, 0])
    assert torch.autograd.gradcheck(lambda z, s: mixture_nll(z, torch.log_softmax(s, -1), target), (logits, scores))
    assert torch.autograd.gradcheck(lambda z, s: mixture_log_probs(z, torch.log_softmax(s, -1)), (logits, scores))


@pytest.mark.parametrize("scale", [1, 3, 10, 30])
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_float32_error_is_no_larger_than_that_of_the_published_programs(num_experts, vocab_size, scale):
    logits, scores, target = draw(num_experts, vocab_size, scale)
    exact = nll_and_gradients(plain_nll, logits, scores, target, torch.float64)
    ours = nll_and_gradients(mixture_nll, logits, scores, target, torch.float32)
    theirs = nll_and_gradients(published_nll, logits, scores, target, torch.float32)
    for value, their_value, exact_value in zip(ours[:2], theirs[:2], exact[:2]):
        error = (value.double() - exact_value).abs().max()
        assert error <= (their_value.double() - exact_value).abs().max()


@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_float32_error_is_no_larger_than_that_of_the_naive_path_on_extreme_logits(num_experts, vocab_size):
    logits, scores, target = extreme(num_experts, vocab_size)
    exact = -mixture(logits, softmax(scores)).gather(-1, target.unsqueeze(-1)).squeeze(-1).log()
    log_prior = torch.log_softmax(scores.float(), -1)
    error = (mixture_nll(logits.float(), log_prior, target).double() - exact).abs()
    naive_error = (plain_nll(logits.float(), log_prior, target).double() - exact).abs()
    assert (error <= naive_error.clamp(min=torch.finfo(torch.float32).eps * 400)).all()


@pytest.mark.parametrize("scale", [1, 3, 10, 30])
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_float32_error_stays_within_a_few_roundings_of_the_largest_logit(num_experts, vocab_size, scale):
    logits, scores, target = draw(num_experts, vocab_size, scale)
    exact = nll_and_gradients(plain_nll, logits, scores, target, torch.float64)
    ours = nll_and_gradients(mixture_nll, logits, scores, target, torch.float32)
    rounding = torch.finfo(torch.float32).eps * logits.abs().max().item()
    for value, exact_value in zip(ours, exact):
        assert (value.double() - exact_value).abs().max() <= 3 * rounding


def test_half_precision_logits_are_scored_in_float32():
    logits = torch.randn(5, 3, 11).bfloat16()
    log_prior = torch.log_softmax(torch.randn(5, 3), -1)
    target = torch.randint(11, (5,))
    expected = mixture(logits.double(), log_prior.double().exp())
    log_probs, nll = mixture_log_probs(logits, log_prior), mixture_nll(logits, log_prior, target)
    assert log_probs.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), expected.log(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(nll.double(), -expected.log().gather(-1, target[:, None])[:, 0], rtol=1e-6, atol=1e-6)


def test_any_number_of_leading_dimensions():
    logits, log_prior = torch.randn(2, 3, 4, 5, 6), torch.log_softmax(torch.randn(2, 3, 4, 5), -1)
    target = torch.randint(6, (2, 3, 4))
    log_probs, nll = mixture_log_probs(logits, log_prior), mixture_nll(logits, log_prior, target)
    assert log_probs.shape == (2, 3, 4, 6) and nll.shape == (2, 3, 4)
    torch.testing.assert_close(nll, -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1), rtol=1e-6, atol=1e-6)
