"""Rounding: the chunked loss is no further from float64 than the careful path by autograd."""

import pytest
import torch
from mixture_cases import draw, formula, gated_or_not, outcome, plain, smoothed_or_not
from plain_formulas import mixture_loss
from rounding_errors import EPS, rms_errors, under_autocast

from fairseq_plugins.ops.mixture_nll import mixture_nll

SHAPES = [  # experts, vocabulary, tokens, width
    (1, 507, 123, 20),
    (3, 252, 60, 7),
    (20, 123, 50, 12),
]
AWKWARD = [(3, 1, 10, 4), (4, 30, 1, 5)]

sixteen_bits = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


# float32


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 10, 30])
@pytest.mark.parametrize("shape", SHAPES + AWKWARD)
def test_float32_error_is_no_larger_than_that_of_autograd(shape, scale, smoothing, gate_width):
    options = dict(scale=scale, label_smoothing=smoothing, gate_width=gate_width)
    ours, theirs = [rms_errors(function, shape, torch.float32, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        # the sums run in another order; one rounding of 1 is added because autograd is exact where V = 1
        assert error <= 1.25 * theirs[name] + EPS, name


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("chunk_size", [1, 7])
def test_small_chunks_lose_no_precision(chunk_size, smoothing, gate_width):
    shape = (3, 252, 60, 7)
    options = dict(label_smoothing=smoothing, gate_width=gate_width)
    ours = rms_errors(mixture_nll, shape, torch.float32, chunk_size=chunk_size, **options)
    theirs = rms_errors(plain, shape, torch.float32, **options)
    # the products of the chunks are added one by one, each with a rounding
    assert all(error <= 1.5 * theirs[name] + EPS for name, error in ours.items())


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


@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 80, 200])
@pytest.mark.parametrize("num_experts, vocab_size", [(1, 123), (3, 252), (20, 50)])
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


@smoothed_or_not
def test_experts_that_disagree_by_400_nats(smoothing):
    logits = torch.full((2, 2, 7), -200.0)
    logits[:, 0, 0] = logits[:, 1, 1] = 200.0
    log_prior = torch.tensor([[0.25, 0.75]]).log().repeat(2, 1).requires_grad_()
    logits.requires_grad_()
    loss, nll = mixture_nll(logits, log_prior, torch.eye(7), torch.tensor([0, 1]), label_smoothing=smoothing)
    torch.testing.assert_close(nll, -torch.tensor([0.25, 0.75]).log(), rtol=1e-6, atol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [logits, log_prior]))


@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 30, 300])
def test_ruled_out_experts_and_words_stay_finite(scale, smoothing):
    case = draw(4, 57, 30, 6, scale=scale)
    leaves, scores = case.leaves(torch.float32), torch.randn(30, 4)
    scores[:, 2] = scores[::2, 0] = -torch.inf
    scores.requires_grad_()
    loss, nll = mixture_nll(
        leaves["latents"],
        torch.log_softmax(scores, -1),
        leaves["weight"],
        case.target,
        bias=leaves["bias"],
        label_smoothing=smoothing,
    )
    gradients = torch.autograd.grad(loss, [leaves["latents"], leaves["weight"], leaves["bias"], scores])
    assert loss.isfinite() and nll.isfinite().all()
    assert all(g.isfinite().all() for g in gradients) and not gradients[0][:, 2].any()


# 16 bits


@pytest.mark.slow
@gated_or_not
@sixteen_bits
@smoothed_or_not
@pytest.mark.parametrize("scale, with_bias", [(1, False), (1, True), (10, False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_sixteen_bit_error_is_no_larger_than_that_of_autograd(shape, scale, with_bias, smoothing, dtype, gate_width):
    options = dict(scale=scale, with_bias=with_bias, label_smoothing=smoothing, gate_width=gate_width)
    ours, theirs = [rms_errors(function, shape, dtype, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        # both paths take the same logits and products in 16 bits, and differ in how they round sums in float32;
        # the careful path rounds a gate's bias with its product, so that by chance its gate may be nearer
        assert error <= (1.05 if gate_width is None else 1.2) * theirs[name] + EPS, name


@pytest.mark.slow
@gated_or_not
@sixteen_bits
@smoothed_or_not
@pytest.mark.parametrize("shape", SHAPES)
def test_many_small_chunks_add_one_rounding_in_sixteen_bits(shape, smoothing, dtype, gate_width):
    options = dict(label_smoothing=smoothing, gate_width=gate_width)
    ours = rms_errors(mixture_nll, shape, dtype, chunk_size=7, **options)
    theirs = rms_errors(plain, shape, dtype, **options)
    for name, error in ours.items():
        # the product of each chunk is rounded and together they weigh as much as their sum's: sqrt(2) at most
        rounding = 1.42 if name in ("weight", "gate_weight") else 1.05 if gate_width is None else 1.2
        assert error <= rounding * theirs[name] + EPS, name


@gated_or_not
@sixteen_bits
def test_sixteen_bit_inputs_have_losses_in_float32_and_gradients_of_their_own_type(dtype, gate_width):
    case = draw(*SHAPES[0], dtype=dtype, gate_width=gate_width)
    ours = outcome(mixture_nll, case, dtype)
    wide = {"loss", "nll", "log_prior"}
    assert {name: value.dtype for name, value in ours.items()} == {
        name: torch.float32 if name in wide else dtype for name in ("loss", "nll", *case.learned)
    }


@sixteen_bits
@pytest.mark.parametrize("num_tokens", [1000, 4000])
def test_contributions_of_many_small_chunks_add_up(num_tokens, dtype):
    """Each token adds 1/2; sums in 16 bits would stop to grow at 128 in bfloat16 and at 1,024 in float16."""
    weight, bias = torch.zeros(2, 1, dtype=dtype, requires_grad=True), torch.zeros(2, dtype=dtype, requires_grad=True)
    latents, target = torch.ones(num_tokens, 1, 1, dtype=dtype), torch.zeros(num_tokens, dtype=torch.long)
    loss = mixture_nll(latents, torch.zeros(num_tokens, 1), weight, target, bias=bias, chunk_size=1).loss
    expected = torch.tensor([-num_tokens / 2, num_tokens / 2])
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        torch.testing.assert_close(gradient.flatten().float(), expected, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.slow
@gated_or_not
@sixteen_bits
@smoothed_or_not
@pytest.mark.parametrize("loss_scale", [1.0, 2.0**16])
@pytest.mark.parametrize("shape", SHAPES)
def test_under_autocast_parameters_in_float32_have_gradients_in_float32(
    shape, loss_scale, smoothing, dtype, gate_width
):
    options = dict(loss_scale=loss_scale, label_smoothing=smoothing, gate_width=gate_width)
    ours, theirs = [
        rms_errors(under_autocast(dtype, function), shape, torch.float32, **options)
        for function in (mixture_nll, plain)
    ]
    for name, error in ours.items():
        # both round the operands of the same products to 16 bits; here the bias of the careful path is rounded too
        assert error <= 1.05 * theirs[name] + EPS, name
    case = draw(*shape, gate_width=gate_width)
    types = outcome(under_autocast(dtype, mixture_nll), case, torch.float32, label_smoothing=smoothing)
    assert {value.dtype for value in types.values()} == {torch.float32}


@sixteen_bits
def test_autocast_takes_its_products_in_sixteen_bits(dtype):
    case = draw(*SHAPES[2])
    args = (case.latents.float(), case.log_prior.float(), case.weight.float(), case.target)
    rounded = mixture_nll(args[0].to(dtype), args[1], args[2].to(dtype), case.target).nll
    with torch.autocast("cpu", dtype):
        assert torch.equal(mixture_nll(*args).nll, rounded)
    assert not torch.equal(mixture_nll(*args).nll, rounded)


@gated_or_not
@sixteen_bits
def test_autocast_leaves_float64_alone(dtype, gate_width):
    case = draw(*SHAPES[0], gate_width=gate_width)
    with torch.autocast("cpu", dtype):
        ours = outcome(mixture_nll, case)
    assert all(
        torch.equal(value, expected) for value, expected in zip(ours.values(), outcome(mixture_nll, case).values())
    )


@sixteen_bits
def test_autocast_takes_latents_of_its_type_with_a_matrix_in_float32(dtype):
    case = draw(*SHAPES[0], dtype=dtype)
    leaves = case.leaves(torch.float32)
    latents = case.latents.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype):
        loss = mixture_nll(latents, leaves["log_prior"], leaves["weight"], case.target, bias=leaves["bias"]).loss
    d_latents, d_weight = torch.autograd.grad(loss, [latents, leaves["weight"]])
    assert loss.dtype == d_weight.dtype == torch.float32 and d_latents.dtype == dtype
