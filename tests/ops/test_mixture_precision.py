"""The precision of the loss of a mixture: float32, 16 bits, float16's range and chunks in bfloat16.

Sizes are numbers of experts, words and tokens, and the width of the experts' hidden states.
"""

from collections import defaultdict
from functools import lru_cache, partial

import pytest
import torch
from assertions import assert_near
from mixture_cases import (
    ALL_PARTS,
    BASE,
    GATE,
    OTHER,
    SIZES,
    SMOOTHED,
    call,
    draw,
    formula,
    on_both_kernels,
    outcome,
    plain,
    smoothed_or_not,
)
from operations import TensorSizes
from plain_formulas import mixture_loss

from fairseq_plugins.ops.mixture_loss import mixture_nll

# errors in float32 and 16 bits, beside those of autograd; which of two paths rounds a single number better is chance

EPS = torch.finfo(torch.float32).eps
NUM_SEEDS = 5
MARGINS = dict(adversarial_epsilon=0.05)
GATED = dict(gate_width=6, **SMOOTHED)
PAIRS = [{}, GATED, dict(gate_width=6, **MARGINS), SMOOTHED | MARGINS]

sixteen_bits = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def rms_errors(
    function, sizes, dtype, *, scale=1.0, with_bias=True, loss_scale=1.0, token_weight=None, gate_width=None, **options
):
    """Root mean squared error of NLL and gradients over all elements and seeds, with ``loss_scale`` taken out again."""
    of_the_loss = {name: options.get(name, 0.0) for name in ("label_smoothing", "adversarial_epsilon")}
    drawn = dict(scale=scale, dtype=dtype, with_bias=with_bias, token_weight=token_weight, gate_width=gate_width)
    squares = defaultdict(list)
    for seed in range(NUM_SEEDS):
        case, exact = _case(seed, sizes, **drawn, **of_the_loss)
        ours = outcome(scaled_by(loss_scale, function), case, dtype, **options)
        for name in ("nll", *case.learned):
            value = ours[name].double() / (1 if name == "nll" else loss_scale)
            squares[name].append((value - exact[name]).square().mean())
    return {name: torch.stack(values).mean().sqrt().item() for name, values in squares.items()}


@lru_cache(maxsize=NUM_SEEDS)
def _case(seed, sizes, *, scale, dtype, with_bias, token_weight, gate_width, **of_the_loss):
    """Inputs and what they give in float64, kept for the next function that is measured on them."""
    torch.manual_seed(seed)
    case = draw(*sizes, scale=scale, dtype=dtype, gate_width=gate_width)
    if not with_bias:
        case.bias.zero_()
    if token_weight is not None:
        case.token_weights.fill_(token_weight)
    return case, outcome(formula, case, **of_the_loss)


def scaled_by(factor, function):
    def scaled(*args, **options):
        loss, nll = function(*args, **options)
        return loss * factor, nll

    return scaled


def under_autocast(dtype, function):
    def call(*args, **options):
        with torch.autocast("cpu", dtype):
            return function(*args, **options)

    return call


@on_both_kernels
@pytest.mark.parametrize(
    "sizes, given, bound",
    [
        # the sums run in another order; one rounding of 1 is added because autograd is exact where V = 1
        *((sizes, options, 1.25) for sizes in SIZES for options in PAIRS[1:3]),
        *((SIZES[0], dict(scale=30, **options), 1.25) for options in PAIRS),
        *((SIZES[1], dict(scale=10, **options), 1.25) for options in PAIRS),
        # the products of the chunks are added one by one, each with a rounding
        *((SIZES[1], dict(chunk_size=7, **options), 1.5) for options in ({}, GATED)),
    ],
)
def test_float32_error_is_no_larger_than_that_of_autograd(sizes, given, bound):
    ours, theirs = [rms_errors(function, sizes, torch.float32, **given) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= bound * theirs[name] + EPS, name


@on_both_kernels
@pytest.mark.slow
@sixteen_bits
@pytest.mark.parametrize(
    "sizes, given",
    [
        *((SIZES[0], dict(with_bias=False, **options)) for options in PAIRS),
        *((SIZES[1], options) for options in PAIRS[1:3]),
        *((SIZES[2], dict(scale=10, with_bias=False, **options)) for options in PAIRS),
        *((SIZES[0], dict(chunk_size=7, **options)) for options in ({}, GATED)),
    ],
)
def test_sixteen_bit_error_is_no_larger_than_that_of_autograd(sizes, given, dtype):
    ours, theirs = [rms_errors(function, sizes, dtype, **given) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        # both paths take the same logits and products in 16 bits, and differ in how they round sums in float32;
        # the careful path rounds a gate's bias with its product, so that by chance its gate may be nearer
        factor = 1.25 if "adversarial_epsilon" in given else 1.2 if "gate_width" in given else 1.05
        # the product of each chunk is rounded and together they weigh as much as their sum's: sqrt(2) at most
        factor = 1.42 if "chunk_size" in given and name in ("weight", "gate_weight") else factor
        assert error <= factor * theirs[name] + EPS, name


@pytest.mark.slow
@sixteen_bits
@pytest.mark.parametrize("sizes, loss_scale", [(SIZES[0], 1.0), (SIZES[2], 2.0**16)])
def test_under_autocast_parameters_in_float32_have_gradients_in_float32(sizes, loss_scale, dtype):
    ours, theirs = [
        rms_errors(under_autocast(dtype, function), sizes, torch.float32, loss_scale=loss_scale, **GATED)
        for function in (mixture_nll, plain)
    ]
    for name, error in ours.items():
        # both round the operands of the same products to 16 bits; here the bias of the careful path is rounded too
        assert error <= 1.05 * theirs[name] + EPS, name
    types = outcome(under_autocast(dtype, mixture_nll), draw(*sizes, **ALL_PARTS), torch.float32)
    assert {value.dtype for value in types.values()} == {torch.float32}


@on_both_kernels
@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes, loss_scale, token_weight, options",
    [((1, 3000, 300, 8), 2.0**16, 2.0**-9, GATED), ((3, 600, 200, 8), 2.0**7, 1.0, {})],
)
def test_a_loss_scale_saves_small_gradients_in_float16(sizes, loss_scale, token_weight, options):
    given = dict(scale=0.3, loss_scale=loss_scale, token_weight=token_weight, **options)
    ours, theirs = [rms_errors(function, sizes, torch.float16, **given) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= 1.05 * theirs[name] + EPS * token_weight, name


@on_both_kernels
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("logit", [0.0, 20.3, 80.3, 3000.3])
def test_a_confident_prediction_costs_nothing_however_large_its_logit(logit, num_experts):
    latents, weight, bias = torch.zeros(50, num_experts, 2), torch.zeros(11, 2), torch.randn(11)
    log_prior, target = torch.log_softmax(torch.randn(50, num_experts), -1), torch.full((50,), 4)
    bias[4] = logit
    nll = mixture_nll(latents, log_prior, weight, target, bias=bias).nll
    expected = mixture_loss(*(x.double() for x in (latents, log_prior.exp(), weight, bias)), target)[1]
    if num_experts == 1:
        assert (nll >= 0).all()
    torch.testing.assert_close(nll.double(), expected, rtol=2 * EPS, atol=4 * EPS)


@on_both_kernels
@smoothed_or_not
@pytest.mark.parametrize("num_experts, vocab_size, scale", [(1, 123, 200), (3, 252, 80), (20, 50, 200), (3, 252, 1)])
def test_probabilities_that_underflow_do_no_harm(num_experts, vocab_size, scale, smoothing):
    """Word 0 has the logit +scale, the others -scale, so that their probability is e^(-2 scale)."""
    target, ones = torch.arange(60) % vocab_size, torch.ones(60)
    latents, bias = torch.randn(60, num_experts, 5), torch.full((vocab_size,), -float(scale))
    weight, log_prior = 0.1 * torch.randn(vocab_size, 5), torch.log_softmax(torch.randn(60, num_experts), -1)
    bias[0] = scale

    def results(function, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (latents, log_prior, weight, bias)]
        options = dict(bias=leaves[3], token_weights=ones.to(dtype), label_smoothing=smoothing)
        loss, nll = function(*leaves[:3], target, **options)
        return [nll, *torch.autograd.grad(loss, leaves)]

    ours, exact = results(mixture_nll, torch.float32), results(formula, torch.float64)
    assert all(value.isfinite().all() for value in ours)
    # logits have a size of scale, and a gradient sums up to 60 of them
    torch.testing.assert_close(ours[0].double(), exact[0], rtol=1e-6, atol=4 * EPS * scale)
    for value, exact_value in zip(ours[1:], exact[1:]):
        torch.testing.assert_close(value.double(), exact_value, rtol=1e-4, atol=16 * EPS * scale)
    if scale > 1:
        probs = (torch.softmax(latents @ weight.T + bias, -1) * log_prior.exp().unsqueeze(-1)).sum(-2)
        assert probs.gather(-1, target[:, None]).log().isinf().any(), "nothing underflows here"


@on_both_kernels
@smoothed_or_not
def test_experts_that_disagree_by_400_nats(smoothing):
    logits = torch.full((2, 2, 7), -200.0)
    logits[:, 0, 0] = logits[:, 1, 1] = 200.0
    log_prior = torch.tensor([[0.25, 0.75]]).log().repeat(2, 1).requires_grad_()
    logits.requires_grad_()
    loss, nll = mixture_nll(logits, log_prior, torch.eye(7), torch.tensor([0, 1]), label_smoothing=smoothing)
    torch.testing.assert_close(nll, -torch.tensor([0.25, 0.75]).log(), rtol=1e-6, atol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [logits, log_prior]))


@on_both_kernels
def test_contributions_of_many_small_chunks_add_up(num_tokens=400):
    """Each token adds 1/2. A sum in bfloat16 would stop to grow at 128."""
    weight, bias = (torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((2, 1), (2,)))
    latents, target = torch.ones(num_tokens, 1, 1, dtype=torch.bfloat16), torch.zeros(num_tokens, dtype=torch.long)
    loss = mixture_nll(latents, torch.zeros(num_tokens, 1), weight, target, bias=bias, chunk_size=1).loss
    expected = torch.tensor([-num_tokens / 2, num_tokens / 2])
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        torch.testing.assert_close(gradient.flatten().float(), expected, rtol=2**-7, atol=0)


@sixteen_bits
def test_autocast_takes_its_products_in_sixteen_bits_and_leaves_float64_alone(dtype):
    case = draw(*SIZES[2])
    latents, log_prior, weight = case.latents.float(), case.log_prior.float(), case.weight.float().requires_grad_()
    rounded = mixture_nll(latents.to(dtype), log_prior, weight.to(dtype), case.target)
    assert not torch.equal(mixture_nll(latents, log_prior, weight, case.target).nll, rounded.nll)
    for given in (latents, latents.to(dtype)):
        with torch.autocast("cpu", dtype):
            loss, nll = mixture_nll(given.requires_grad_(), log_prior, weight, case.target)
        d_latents, d_weight = torch.autograd.grad(loss, [given, weight])
        assert torch.equal(nll, rounded.nll) and loss.dtype == d_weight.dtype == torch.float32
        assert d_latents.dtype == given.dtype
    expected, ours = outcome(mixture_nll, case), outcome(under_autocast(dtype, mixture_nll), case)
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


# float16


@on_both_kernels
@pytest.mark.parametrize("token_weight, latent, weight", [(1, 1, 0), (16, 1, 0), (1, 16, 0), (1, 1, 16)])
@pytest.mark.parametrize("num_tokens, chunk_size", [(60, 1), (4000, None)])
def test_float16_gradients_of_a_frequent_word_are_finite(num_tokens, chunk_size, token_weight, latent, weight):
    """float16 ends at 65,504. These gradients stay below it, so what is formed on the way must stay below it, too."""
    case = draw(1, 50, num_tokens, 1)
    case.latents.fill_(latent)
    case.bias.zero_()
    case.weight[:25], case.weight[25:] = -weight, weight
    case.target.fill_(7)
    case.token_weights.fill_(token_weight)
    assert_finite_in_float16(case, outcome(formula, case), BASE, chunk_size)


@on_both_kernels
@pytest.mark.parametrize("num_experts, chunk_size", [(1, None), (3, 1)])
@pytest.mark.parametrize("feature, logit", [(1, 256), (16, 32), (1 / 16, 2048)])
def test_float16_gradients_of_a_gate_on_large_logits_are_finite(feature, logit, num_experts, chunk_size):
    """A gate's sigmoid is a half here, so its slope is a quarter.

    The gradient by a score is a quarter of the logit times the gradient by the logit. Some of the latter are one.
    """
    case = draw(num_experts, 50, 60, 1, gate_width=1)
    for x in (case.weight, case.gate_weight, case.gate_bias):
        x.zero_()
    case.bias[:25], case.bias[25:] = -logit, logit
    case.gate_features.fill_(feature)
    case.target.fill_(7)
    case.token_weights.fill_(1)
    exact = outcome(plain, case)  # in float64, where the probability of a word may underflow: e^-2048
    assert_finite_in_float16(case, exact, GATE, chunk_size)


def assert_finite_in_float16(case, exact, names, chunk_size):
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in names:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        # a rounding each of p - 1, of the product and of the result
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


# chunks in bfloat16

MAX_GRADIENT_ERROR = 0.01
MAX_LOSS_BIAS = 1e-4
NUM_TOKENS = 1000

narrow_nll = partial(mixture_nll, chunk_dtype=torch.bfloat16)


def assert_safe(case, **options):
    case.token_weights.fill_(1)
    ours = outcome(narrow_nll, case, torch.float32, **options)
    exact = outcome(formula, case, **options)
    of_the_mixture = (
        exact["loss"]
        if case.log_other is None
        else call(formula, case, case.leaves(torch.float64), interpolation=None, **options).loss
    )
    assert abs(ours["loss"].double() - exact["loss"]) < MAX_LOSS_BIAS * of_the_mixture
    for name in case.learned:
        error = (ours[name].double() - exact[name]).norm() / exact[name].norm()
        assert error < MAX_GRADIENT_ERROR, name
        assert ours[name].dtype == torch.float32


@on_both_kernels
@pytest.mark.parametrize(
    "num_experts, scale, parts, options",
    [
        (1, 1, {}, SMOOTHED),
        (3, 1, dict(gate_width=6), SMOOTHED),
        (3, 3, {}, dict(adversarial_epsilon=0.005, **SMOOTHED)),
        (3, 3, dict(gate_width=6), dict(adversarial_epsilon=0.1, **SMOOTHED)),
        (1, 3, dict(interpolated=True), MARGINS),
        (3, 3, dict(interpolated=True), SMOOTHED),
    ],
)
def test_random_weights(num_experts, scale, parts, options):
    assert_safe(draw(num_experts, 1000, NUM_TOKENS, 64, scale=scale, **parts), **options)


@lru_cache(maxsize=1)
def trained_case():
    """Weights that were trained on one text, and another of the same language."""
    truth = draw(3, 1000, 2 * NUM_TOKENS, 64, scale=3)
    probs = (torch.softmax(truth.latents @ truth.weight.T, -1) * truth.log_prior.exp().unsqueeze(-1)).sum(-2)
    target = torch.multinomial(probs, 1).squeeze(1)
    weights = [torch.zeros_like(x, dtype=torch.float32).requires_grad_() for x in (truth.weight, truth.bias)]
    optimiser = torch.optim.Adam(weights, lr=0.02)
    losses = []
    for _ in range(50):
        seen = truth.latents[:NUM_TOKENS].float(), truth.log_prior[:NUM_TOKENS].float()
        loss = mixture_nll(*seen, weights[0], target[:NUM_TOKENS], bias=weights[1]).loss / NUM_TOKENS
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    case = draw(3, 1000, NUM_TOKENS, 64)
    unseen = slice(NUM_TOKENS, None)
    case.latents, case.log_prior, case.target = truth.latents[unseen], truth.log_prior[unseen], target[unseen]
    case.weight, case.bias = (weight.detach().double() for weight in weights)
    return case


@on_both_kernels
def test_trained_weights():
    assert_safe(trained_case())


@on_both_kernels
@pytest.mark.parametrize("rate, atol", [(0.0, 1e-30), (0.1, 1e-6)])
@pytest.mark.parametrize("logit", [-30.0, 0.0, 5.0, 30.0])
def test_gradients_of_a_confident_prediction_are_exact(logit, rate, atol):
    """1 - P(target) is e^-30 at the end, which 16 bits cannot tell from P = 1."""
    case = draw(1, 100, 1, 1)
    case.latents.zero_()
    case.log_prior.zero_()
    case.bias.zero_()[case.target] = logit
    case.token_weights.fill_(1)
    ours = outcome(narrow_nll, case, torch.float32, label_smoothing=rate)
    expected = outcome(formula, case, label_smoothing=rate)
    torch.testing.assert_close(ours["bias"].double(), expected["bias"], rtol=0.01, atol=atol)


@on_both_kernels
@pytest.mark.parametrize("scale, num_experts", [(80.0, 1), (300.0, 3), (3e38, 1), (3e38, 3)])
def test_logits_beyond_the_exponential_are_scored_all_the_same(scale, num_experts):
    """e^z would be infinite, or zero for all words of a row."""
    latents, weight = torch.zeros(6, num_experts, 2), torch.zeros(11, 2)
    log_prior, target = torch.full((6, num_experts), 1 / num_experts).log(), torch.arange(6)
    for sign in (1, -1):
        bias = torch.full((11,), sign * scale).requires_grad_()
        loss, nll = narrow_nll(latents, log_prior, weight, target, bias=bias)
        torch.testing.assert_close(nll, torch.full((6,), 11.0).log(), rtol=0.01, atol=0)
        assert torch.autograd.grad(loss, bias)[0].isfinite().all()


@pytest.mark.parametrize("size, num_looks", [(1.0, 0), (-60.0, 0), (-200.0, 1)])
def test_exponentials_beyond_the_numbers_are_seen(size, num_looks, monkeypatch):
    """Centred on the targets' row, the third word's logit is -2 ``size``."""
    looks = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda *args, **kwargs: looks.append(args) or softmax(*args, **kwargs))
    weight = torch.tensor([[1.0], [1.0], [-1.0]])
    narrow_nll(torch.full((2, 1, 1), size / 2), torch.zeros(2, 1), weight, torch.tensor([0, 1]))
    assert len(looks) == num_looks


@pytest.mark.parametrize("chunk_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_losses_are_wide_and_gradients_have_the_types_of_their_tensors(dtype, chunk_dtype):
    case = draw(3, 50, 20, 8, dtype=torch.bfloat16, **ALL_PARTS)
    ours, exact = outcome(mixture_nll, case, dtype, chunk_dtype=chunk_dtype), outcome(formula, case)
    for name, found in ours.items():
        is_wide = name in {"loss", "nll", "log_prior", *OTHER}
        assert found.dtype == (torch.promote_types(dtype, torch.float32) if is_wide else dtype), name
        assert_near(found, exact[name])


def test_a_chunk_takes_half_the_memory():
    case = draw(3, 5000, 60, 4)
    leaves = case.leaves(torch.float32)
    largest = []
    for function in (mixture_nll, narrow_nll):
        with TensorSizes() as sizes:
            call(function, case, leaves, chunk_size=20)
        largest.append(sizes.largest_bytes)
    assert largest == [20 * 3 * 5000 * 4, 20 * 3 * 5000 * 2]
