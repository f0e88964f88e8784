"""The scale of gradients in float16: large ones stay finite, and small ones are not lost."""

import pytest
import torch
from mixture_cases import BASE, GATE, draw, formula, gated_or_not, outcome, plain, smoothed_or_not
from rounding_errors import EPS, rms_errors

from fairseq_plugins.ops.float16_scale import float16_scale, logit_bound
from fairseq_plugins.ops.mixture_nll import mixture_nll


@pytest.mark.parametrize("token_weight, latent, weight", [(1, 1, 0), (16, 1, 0), (1, 16, 0), (1, 1, 16)])
@pytest.mark.parametrize("chunk_size", [None, 1, 100])
@pytest.mark.parametrize("num_tokens", [300, 4000])
def test_float16_gradients_of_a_frequent_word_are_finite(num_tokens, chunk_size, token_weight, latent, weight):
    """float16 ends at 65,504. These gradients stay below it, so what is formed on the way must stay below it, too."""
    case = draw(1, 50, num_tokens, 1)
    case.latents.fill_(latent)
    case.bias.zero_()
    case.weight[:25], case.weight[25:] = -weight, weight
    case.target.fill_(7)
    case.token_weights.fill_(token_weight)
    exact = outcome(formula, case)
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in BASE:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        # a rounding each of p - 1, of the product and of the result
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


@pytest.mark.parametrize("chunk_size", [None, 1, 100])
@pytest.mark.parametrize("num_experts", [1, 3])
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
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in GATE:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("row, weight", [(0.01, 0.1), (3.0, 0.1), (0.01, 300.0)])
def test_the_scale_is_a_power_of_two_that_uses_the_range_and_stays_in_it(row, weight, factor):
    rows, matrix = row * torch.randn(40, 3, 5), weight * torch.randn(7, 5)
    scale = float16_scale(rows, matrix, torch.full((40,), factor), chunk_size=10).item()
    assert torch.tensor(scale).log2().frac() == 0
    largest = factor * max(1.0, 10 * rows.abs().max().item(), 2 * matrix.abs().max().item())
    assert scale * largest <= 2**15
    assert scale * largest > 2**14 or scale == 2**25  # where all factors are tiny


@pytest.mark.parametrize("with_bias", [True, False])
def test_no_logit_exceeds_its_bound(with_bias):
    latents, weight, bias = torch.randn(9, 3, 5), torch.randn(7, 5), torch.randn(7) if with_bias else None
    logits = torch.nn.functional.linear(latents, weight, bias)
    assert logits.abs().max() <= logit_bound(latents, weight, bias) < 10 * logits.abs().max()
    aligned = torch.nn.functional.linear(weight[:1], weight[:1])
    torch.testing.assert_close(logit_bound(weight[:1], weight[:1], None), aligned.squeeze(), rtol=1e-5, atol=0)


@pytest.mark.slow
@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("loss_scale, token_weight", [(2.0**7, 1.0), (2.0**16, 2.0**-9)])
@pytest.mark.parametrize("shape", [(1, 3000, 300, 8), (3, 600, 200, 8)])
def test_a_loss_scale_saves_small_gradients_in_float16(shape, loss_scale, token_weight, smoothing, gate_width):
    options = dict(
        scale=0.3, loss_scale=loss_scale, token_weight=token_weight, label_smoothing=smoothing, gate_width=gate_width
    )
    ours, theirs = [rms_errors(function, shape, torch.float16, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= 1.05 * theirs[name] + EPS * token_weight, name
