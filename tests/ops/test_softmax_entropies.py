"""The entropies of softmaxes against their formula in float64."""

import math

import pytest
import torch
from mixture_cases import draw, gated_or_not
from plain_formulas import gated, softmax

from fairseq_plugins.ops import softmax_entropies as module
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.softmax_entropies import softmax_entropies


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
