"""A gate on the logits: its formula, its limits, and types under autocast."""

import pytest
import torch
from assertions import assert_near
from mixture_cases import draw, outcome, smoothed_or_not
from plain_formulas import gated

from fairseq_plugins.ops.logit_gate import LogitGate, apply_gate
from fairseq_plugins.ops.mixture_distribution import mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_loss import mixture_nll


def draw_gate(*leading, num_features=6, vocab_size=7, dtype=torch.float64):
    shapes = (*leading, num_features), (vocab_size, num_features), (vocab_size,)
    return LogitGate(*(torch.randn(shape).to(dtype) for shape in shapes))


# the differentiable gate


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_experts, vocab_size, leading", [(1, 123, ()), (3, 252, (4,)), (20, 57, (2, 3))])
def test_gated_logits_are_those_of_the_formula_and_wide(num_experts, vocab_size, leading, dtype):
    logits = torch.randn(*leading, num_experts, vocab_size).to(dtype)
    gate = draw_gate(*leading, vocab_size=vocab_size, dtype=dtype)
    ours, expected = apply_gate(logits, gate), gated(logits.double(), *(x.double() for x in gate))
    assert ours.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_under_autocast_the_gate_may_be_of_another_type():
    logits, gate = torch.randn(5, 3, 7).bfloat16(), draw_gate(5, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = apply_gate(logits, gate)
    assert_near(ours, gated(logits.double(), *(x.double() for x in gate)))


# in the mixture loss


@smoothed_or_not
@pytest.mark.parametrize("num_experts", [1, 3])
def test_a_gate_that_is_closed_everywhere_leaves_a_uniform_distribution(num_experts, smoothing):
    case = draw(num_experts, 252, 60, 7, scale=30, gate_width=6)
    case.gate_bias.fill_(-200)  # the sigmoid is zero in float32, so no division by it can stand
    case.token_weights.fill_(1)
    ours = outcome(mixture_nll, case, torch.float32, label_smoothing=smoothing)
    torch.testing.assert_close(ours["nll"], torch.full((60,), 252.0).log(), rtol=1e-6, atol=0)
    assert all(ours[name].isfinite().all() for name in case.learned)
    assert not any(ours[name].any() for name in case.learned if name != "log_prior")


def test_under_autocast_the_types_may_differ():
    """Two rows of three tokens, four experts, width five, seven words."""
    latents, log_prior, weight = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4), torch.zeros(7, 5)
    target = torch.zeros(2, 3, dtype=torch.long)
    fitting = LogitGate(torch.zeros(2, 3, 6), torch.zeros(7, 6), torch.zeros(7))
    with torch.autocast("cpu", torch.bfloat16):
        for part in LogitGate._fields:
            gate = fitting._replace(**{part: getattr(fitting, part).bfloat16()})
            assert mixture_nll(latents, log_prior, weight, target, gate=gate).loss.isfinite()
            assert mixture_log_probs_from_latents(latents, log_prior, weight, gate=gate).isfinite().all()
            assert apply_gate(torch.zeros(2, 3, 4, 7), gate).isfinite().all()
