"""The distribution of a mixture against float64 formulas in probability space."""

import math

import pytest
import torch
from mixture_cases import draw, gated_or_not
from operations import TensorSizes
from plain_formulas import gated, mixture, softmax

from fairseq_plugins.ops import mixture_distribution as module
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.ops.mixture_distribution import (
    mixture_log_probs,
    mixture_log_probs_from_latents,
    softmax_entropies,
)

SIZES = [(3, 252), (20, 507), (1, 123)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1, 10, 30])
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_log_probs_are_the_log_of_the_mixture_up_to_roundings(num_experts, vocab_size, scale, dtype):
    logits = (scale * torch.randn(4, 15, num_experts, vocab_size)).to(dtype)
    log_prior = torch.log_softmax(torch.randn(4, 15, num_experts, dtype=accumulation_dtype(logits)), -1)
    log_probs = mixture_log_probs(logits, log_prior)
    assert log_probs.dtype == log_prior.dtype
    error = (log_probs.double() - mixture(logits.double(), log_prior.double().exp()).log()).abs().max()
    assert error <= 3 * torch.finfo(log_probs.dtype).eps * logits.double().abs().max()


def draw_latents(num_experts, vocab_size, *, width=6, scale=1.0, dtype=torch.float64):
    """k, log pi, W, b: the logits have about the standard deviation ``scale``."""
    latents = torch.randn(4, 15, num_experts, width, dtype=dtype)
    weight = (scale * width**-0.5) * torch.randn(vocab_size, width, dtype=dtype)
    prior_dtype = torch.promote_types(dtype, torch.float32)
    log_prior = torch.log_softmax(torch.randn(4, 15, num_experts, dtype=prior_dtype), dim=-1)
    return latents, log_prior, weight, torch.randn(vocab_size, dtype=dtype)


@pytest.fixture(params=[1, 7, None], ids=lambda size: f"chunks of {size}")
def chunk_size(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr(module, "default_chunk_size", lambda *args, **kwargs: request.param)


def draw_gate(vocab_size, *, dtype=torch.float64):
    shapes = (4, 15, 6), (vocab_size, 6), (vocab_size,)
    return LogitGate(*(torch.randn(shape, dtype=dtype) for shape in shapes))


gated_with_bias_or_neither = pytest.mark.parametrize("is_gated", [False, True], ids=["no gate", "gated"])


def draw_scored(num_experts, vocab_size, *, is_gated, **options):
    """Arguments of the distribution with a bias and a gate, or without, and the expected log-probabilities."""
    latents, log_prior, weight, bias = draw_latents(num_experts, vocab_size, **options)
    gate = draw_gate(vocab_size, dtype=latents.dtype) if is_gated else None
    logits = latents.double() @ weight.double().T + bias.double() * is_gated
    logits = gated(logits, *(x.double() for x in gate)) if is_gated else logits
    args = latents, log_prior, weight, bias if is_gated else None
    return args, gate, mixture(logits, log_prior.double().exp()).log()


@gated_with_bias_or_neither
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_without_gradients_log_probs_are_the_log_of_the_mixture(num_experts, vocab_size, is_gated, chunk_size):
    args, gate, expected = draw_scored(num_experts, vocab_size, is_gated=is_gated)
    log_probs = mixture_log_probs_from_latents(*args, gate=gate)
    torch.testing.assert_close(log_probs, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("is_gated, scale", [(False, 1), (False, 40), (False, 80), (True, 80)])
def test_without_gradients_improbable_words_keep_their_log_probs(num_experts, is_gated, scale, chunk_size):
    args, gate, expected = draw_scored(num_experts, 101, is_gated=is_gated, scale=scale, dtype=torch.float32)
    assert scale < 40 or (expected < -110).any()  # e^-110 is zero in float32
    latents, _, weight, _ = args
    largest_logit = (latents.abs().flatten(0, 2) @ weight.abs().T).max()
    error = (mixture_log_probs_from_latents(*args, gate=gate).double() - expected).abs().max()
    assert error <= 4 * torch.finfo(torch.float32).eps * largest_logit


def test_without_gradients_an_expert_may_have_no_weight():
    latents, _, weight, bias = draw_latents(3, 50)
    log_prior = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64).log().expand(4, 15, 3)
    log_probs = mixture_log_probs_from_latents(latents, log_prior, weight, bias)
    expected = mixture(latents[..., [0, 2], :] @ weight.T + bias, log_prior[..., [0, 2]].exp()).log()
    torch.testing.assert_close(log_probs, expected, rtol=1e-11, atol=1e-11)


@gated_with_bias_or_neither
@pytest.mark.parametrize("num_experts, dtype", [(1, torch.bfloat16), (3, torch.bfloat16), (3, torch.float16)])
def test_without_gradients_16_bit_latents_are_scored_in_float32(num_experts, dtype, is_gated):
    args, gate, expected = draw_scored(num_experts, 101, is_gated=is_gated, dtype=dtype)
    log_probs = mixture_log_probs_from_latents(*args, gate=gate)
    assert log_probs.dtype == torch.float32
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(log_probs.double(), expected, rtol=tolerance, atol=tolerance)


@gated_with_bias_or_neither
def test_without_gradients_autocast_rounds_the_operands(is_gated):
    (latents, log_prior, weight, bias), gate, _ = draw_scored(3, 101, is_gated=is_gated, dtype=torch.float32)
    rounded = gate and gate._replace(features=gate.features.bfloat16(), weight=gate.weight.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = mixture_log_probs_from_latents(latents, log_prior, weight, bias, gate=gate)
        expected = mixture_log_probs_from_latents(latents.bfloat16(), log_prior, weight.bfloat16(), bias, gate=rounded)
    assert torch.equal(log_probs, expected)


@gated_with_bias_or_neither
@pytest.mark.parametrize("num_experts", [1, 3])
def test_without_gradients_no_token_gives_no_row(num_experts, is_gated):
    (latents, log_prior, weight, bias), gate, _ = draw_scored(num_experts, 11, is_gated=is_gated)
    gate = gate and gate._replace(features=gate.features[:0])
    assert mixture_log_probs_from_latents(latents[:0], log_prior[:0], weight, bias, gate=gate).shape == (0, 15, 11)


def test_scoring_holds_one_chunk_beside_the_distribution(monkeypatch):
    monkeypatch.setattr(module, "default_chunk_size", lambda *args, **kwargs: 2)
    arguments, gate = draw_latents(20, 5000), draw_gate(5000)
    with TensorSizes() as sizes:
        mixture_log_probs_from_latents(*arguments, gate=gate)
    result, chunk, values, parameters = 60, 2 * 20, 2, 6 + 6 + 1 + 1  # multiples of the vocabulary
    assert result + chunk + values <= sizes.peak / 5000 < result + chunk + values + parameters + 1


@gated_or_not
@pytest.mark.parametrize("chunk_size", [1, 4, 100])
@pytest.mark.parametrize("num_experts", [1, 3])
def test_entropies_are_those_of_the_formula(num_experts, chunk_size, gate_width, monkeypatch):
    monkeypatch.setattr(module, "default_chunk_size", lambda *args, **kwargs: chunk_size)
    case = draw(num_experts, 17, 10, 5, scale=3, gate_width=gate_width)
    logits, gate = case.latents @ case.weight.T + case.bias, None
    if gate_width is not None:
        gate = LogitGate(case.gate_features, case.gate_weight, case.gate_bias)
        logits = gated(logits, *gate)
    probs = softmax(logits)
    found = softmax_entropies(case.latents, case.weight, case.bias, gate=gate)
    torch.testing.assert_close(found, -(probs * probs.log()).sum(-1), rtol=1e-12, atol=1e-12)


def test_a_uniform_softmax_has_the_highest_entropy_and_a_certain_one_none():
    latents = torch.tensor([[[0.0], [1.0]], [[1.0], [0.0]]])
    entropies = softmax_entropies(latents, 1000.0 * torch.arange(9).unsqueeze(-1))
    torch.testing.assert_close(entropies, torch.tensor([[math.log(9), 0.0], [0.0, math.log(9)]]))


def test_without_tokens_there_are_none():
    assert softmax_entropies(torch.zeros(2, 0, 3, 4), torch.zeros(9, 4)).shape == (2, 0, 3)


@pytest.mark.parametrize("num_experts, scale", [(1, 1.0), (4, 1.0), (4, 30.0), (4, 300.0)])
def test_log_probs_in_bfloat16_are_near_for_logits_of_any_size(num_experts, scale):
    latents, weight = torch.randn(40, num_experts, 2), torch.randn(50, 2) * scale
    log_prior = torch.log_softmax(torch.randn(40, num_experts), -1)
    exact = mixture_log_probs_from_latents(latents, log_prior, weight)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, chunk_dtype=torch.bfloat16)
    assert near.dtype == torch.float32 and near.isfinite().all() and not torch.equal(near, exact)
    largest_logit = (latents.abs().flatten(0, 1) @ weight.abs().T).max()
    torch.testing.assert_close(near, exact, rtol=0, atol=0.03 + 4 * 2**-9 * largest_logit.item())


@pytest.mark.parametrize("logits", [(86.0, 87.0), (-80.0, -93.0), (-86.0, -91.0)])
def test_log_probs_in_bfloat16_of_an_expert_at_the_end_of_the_numbers(logits):
    """The other expert is near zero, so that their sum alone looks well."""
    latents, weight = torch.eye(2).unsqueeze(0), torch.zeros(8, 2)
    weight[:, 0], weight[3, 0] = logits
    log_prior = torch.full((1, 2), 0.5).log()
    exact = mixture_log_probs_from_latents(latents, log_prior, weight)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, chunk_dtype=torch.bfloat16)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.5)
