"""Products with chosen labels against those with all of them."""

import math

import pytest
import torch

from fairseq_plugins.ops.noise_contrastive import TOKENS_AT_ONCE, chosen_logits, noise_contrast

U, C, K = 11, 6, 5


def make_inputs(num_tokens):
    hidden = torch.randn(num_tokens, C, dtype=torch.double, requires_grad=True)
    labels = torch.randn(U, C, dtype=torch.double, requires_grad=True)
    return hidden, labels, torch.randint(U - 2, (num_tokens, K))  # the last two labels are not chosen


@pytest.mark.parametrize("num_tokens", [1, 7, 2 * TOKENS_AT_ONCE + 3])
def test_values_and_gradients_are_those_of_all_products(num_tokens):
    hidden, labels, chosen = make_inputs(num_tokens)
    found = chosen_logits(hidden, labels, chosen)
    expected = (hidden @ labels.T).gather(1, chosen)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    factors = torch.randn_like(found)
    gradients = torch.autograd.grad((found * factors).sum(), (hidden, labels))
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * factors).sum(), (hidden, labels)))
    assert not gradients[1][-2:].any()


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_has_no_gradient(frozen):
    inputs = make_inputs(9)
    inputs[frozen].requires_grad_(False)
    chosen_logits(*inputs).sum().backward()
    assert inputs[frozen].grad is None and inputs[1 - frozen].grad is not None


def test_formula():
    targets, noise = torch.randn(3, dtype=torch.double), torch.randn(3, 4, dtype=torch.double)
    is_hit = torch.tensor([[False] * 4, [True, False, False, True], [True] * 4])
    losses = noise_contrast(targets, noise, is_hit)
    for n in range(3):
        expected = -math.log(1 / (1 + math.exp(-targets[n])))
        for margin, hit in zip(noise[n].tolist(), is_hit[n]):
            expected -= 0 if hit else math.log(1 - 1 / (1 + math.exp(-margin)))
        assert losses[n].item() == pytest.approx(expected, rel=1e-12)


def test_log_odds_far_from_zero_have_finite_losses_and_gradients():
    targets = torch.tensor([-1e4, 1e4], requires_grad=True)
    noise = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    losses = noise_contrast(targets, noise, torch.zeros(2, 1, dtype=torch.bool))
    assert losses.tolist() == [2e4, 0]
    losses.sum().backward()
    assert targets.grad.tolist() == [-1, 0] and noise.grad.tolist() == [[1], [0]]


def test_a_hit_has_no_gradient_even_where_it_is_far_off():
    noise = torch.tensor([[math.inf, 1.0]], requires_grad=True)
    noise_contrast(torch.zeros(1), noise, torch.tensor([[True, False]])).sum().backward()
    assert noise.grad[0].tolist() == [0, pytest.approx(torch.sigmoid(torch.tensor(1.0)).item())]


@pytest.mark.parametrize("hits", ["left-out", "counted"])
def test_where_the_expected_loss_is_least(hits):
    """At log-probabilities where all noise counts, at log-odds where hits are left out."""
    p, q = (torch.rand(6, dtype=torch.double).softmax(0) for _ in range(2))
    best = p.log() if hits == "counted" else (p / (1 - p)).log()
    scores = best.requires_grad_()
    log_odds = scores - q.log()
    targets, noise = torch.cartesian_prod(torch.arange(6), torch.arange(6)).unbind(1)
    is_hit = None if hits == "counted" else (targets == noise).unsqueeze(1)
    losses = noise_contrast(log_odds[targets], log_odds[noise].unsqueeze(1), is_hit)
    (slope,) = torch.autograd.grad((p[targets] * q[noise] * losses).sum(), scores)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-14)
