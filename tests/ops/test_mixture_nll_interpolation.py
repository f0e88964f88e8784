"""The mixture loss of targets whose probabilities are interpolated with others.

Shapes: N tokens, J experts, V words.
"""

import pytest
import torch
from mixture_cases import call, draw, gated_or_not, smoothed_or_not
from mixture_cases import formula as mixture_formula
from plain_formulas import mixture_loss

from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_nll import mixture_nll

TOKENS = 20
MAX_GRADIENT_ERROR, MAX_LOSS_BIAS = 0.01, 1e-4
"""Of a chunk in bfloat16."""


def draw_shares(num_tokens=TOKENS):
    """Scores of g and what the other distribution gives the targets, to every second one nothing, (N) each."""
    other = torch.rand(num_tokens).double().masked_fill(torch.arange(num_tokens) % 2 == 0, 0)
    return torch.randn(num_tokens).double().requires_grad_(), other


def interpolated(score, other):
    log_other = torch.nn.functional.logsigmoid(score) + other.log()
    return Interpolation(torch.nn.functional.logsigmoid(-score), log_other)


def formula(case, leaves, score, other, *, label_smoothing, epsilon=0.0):
    """The logarithm of (1 - g) P_mixture + g P_other; label smoothing is the mixture's own."""
    gate = LogitGate(*(leaves[f"gate_{part}"] for part in LogitGate._fields)) if "gate_weight" in leaves else None
    prior = leaves["log_prior"].exp()
    args = (leaves["latents"], prior, leaves["weight"], leaves["bias"], case.target)
    mixture_nll_alone = mixture_loss(*args, 0.0, gate, epsilon)[1]
    smoothed = mixture_loss(*args, label_smoothing, gate, epsilon)[0] - (1 - label_smoothing) * mixture_nll_alone
    share = torch.sigmoid(score)
    nll = -torch.log((1 - share) * torch.exp(-mixture_nll_alone) + share * other)
    return (((1 - label_smoothing) * nll + smoothed) * case.token_weights).sum(), nll


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("chunk_size", [3, 50])
@pytest.mark.parametrize("num_experts", [1, 3])
def test_loss_and_all_gradients_are_those_of_the_formula(num_experts, chunk_size, epsilon, smoothing, gate_width):
    case = draw(num_experts, 11, TOKENS, 5, scale=3, gate_width=gate_width)
    leaves, (score, other) = case.leaves(torch.float64), draw_shares()
    learned = [*leaves.values(), score]
    expected, expected_nll = formula(case, leaves, score, other, label_smoothing=smoothing, epsilon=epsilon)
    options = dict(label_smoothing=smoothing, adversarial_epsilon=epsilon)
    options.update(chunk_size=chunk_size, interpolation=interpolated(score, other))
    loss, nll = call(mixture_nll, case, leaves, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(nll, expected_nll.masked_fill(case.token_weights == 0, 0), rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(value, learned) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_without_weight_for_the_other_it_is_the_mixture_bit_for_bit():
    case = draw(3, 11, TOKENS, 5)
    nothing = Interpolation(torch.zeros(TOKENS), torch.full((TOKENS,), float("-inf")))
    results = []
    for options in ({}, {"interpolation": nothing}):
        leaves = case.leaves(torch.float32)
        loss, nll = call(mixture_nll, case, leaves, **options)
        results.append([loss.detach(), nll, *torch.autograd.grad(loss, list(leaves.values()))])
    assert all(torch.equal(*pair) for pair in zip(*results))


def test_only_the_interpolation_may_learn():
    case, (score, other) = draw(3, 11, TOKENS, 5), draw_shares()
    leaves = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    expected = formula(case, leaves, score, other, label_smoothing=0.0)[0]
    loss = call(mixture_nll, case, leaves, interpolation=interpolated(score, other)).loss
    torch.testing.assert_close(*[torch.autograd.grad(x, score) for x in (loss, expected)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_16_bits_are_those_of_the_formula_up_to_rounding(dtype, epsilon):
    case, (score, other) = draw(3, 11, TOKENS, 8, dtype=dtype), draw_shares()
    leaves = case.leaves(dtype)
    exact = {name: getattr(case, name).requires_grad_() for name in case.learned}
    exact_loss = formula(case, exact, score, other, label_smoothing=0.0, epsilon=epsilon)[0]
    expected = torch.autograd.grad(exact_loss, [*exact.values(), score])
    narrow = Interpolation(*(part.float() for part in interpolated(score, other)))
    options = dict(interpolation=narrow, token_weights=case.token_weights.float(), adversarial_epsilon=epsilon)
    ours = torch.autograd.grad(call(mixture_nll, case, leaves, **options).loss, [*leaves.values(), score])
    for mine, theirs in zip(ours, expected):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=0.02 * float(theirs.abs().max()))


@smoothed_or_not
@pytest.mark.parametrize("epsilon", [0.0, 0.05])
@pytest.mark.parametrize("num_experts", [1, 3])
def test_a_chunk_in_bfloat16_errs_as_little_as_without_interpolation(num_experts, epsilon, smoothing):
    case = draw(num_experts, 1000, 2000, 64, scale=3)
    case.token_weights.fill_(1)
    leaves, exact, (score, other) = case.leaves(torch.float32), case.leaves(torch.float64), draw_shares(2000)
    expected = formula(case, exact, score, other, label_smoothing=smoothing, epsilon=epsilon)[0]
    narrow = Interpolation(*(part.float() for part in interpolated(score, other)))
    options = dict(label_smoothing=smoothing, adversarial_epsilon=epsilon)
    of_the_mixture = call(mixture_formula, case, exact, **options).loss
    options.update(interpolation=narrow, token_weights=case.token_weights.float(), chunk_dtype=torch.bfloat16)
    loss = call(mixture_nll, case, leaves, **options).loss
    assert abs(loss.double() - expected) < MAX_LOSS_BIAS * of_the_mixture
    ours = torch.autograd.grad(loss, [*leaves.values(), score])
    for mine, theirs in zip(ours, torch.autograd.grad(expected, [*exact.values(), score])):
        assert (mine.double() - theirs).norm() < MAX_GRADIENT_ERROR * theirs.norm()


def test_without_reduction_each_token_has_its_loss():
    case, (score, other) = draw(3, 11, TOKENS, 5), draw_shares()
    leaves = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    with torch.no_grad():
        given = interpolated(score, other)
        losses = call(mixture_nll, case, leaves, interpolation=given, reduction="none").loss
        expected = formula(case, leaves, score, other, label_smoothing=0.0)[1] * case.token_weights
    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-12)


def test_without_reduction_a_gradient_is_refused():
    case, (score, other) = draw(3, 11, TOKENS, 5), draw_shares()
    leaves = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    with pytest.raises(ValueError, match='reduction="none" gives no gradient for log_weight, log_other: score under'):
        call(mixture_nll, case, leaves, interpolation=interpolated(score, other), reduction="none")
