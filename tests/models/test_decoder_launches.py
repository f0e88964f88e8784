"""Launches of a step of an attentional decoder in training, counted on a CPU with the branches that a GPU takes."""

from collections import Counter

import pytest
import torch
from builders import build_tiny_encdec
from operations import count_launches, waits

from fairseq_plugins.modules import lstm
from fairseq_plugins.ops import attentional_lstm, recurrence

NUM_LAYERS = 2


class _FusedUpdate(torch.autograd.Function):
    """Stands for the kernel of a GPU: two launches forwards and one backwards, where that has one each."""

    @staticmethod
    def forward(ctx, gates, c):
        return gates[:, 0] + 0, c.clone()

    @staticmethod
    def backward(ctx, d_h, d_c):
        return torch.stack([d_h] * 4, dim=1), d_c


def _fused_cell(sums, c):
    """Stands for the kernel of a GPU: one launch."""
    return c + 0, torch.empty_like(c), sums


def _fused_cell_backward(d_h, d_c, former, c, gates, out):
    return gates + 0, d_c


def launches(num_steps, **flags):
    model = build_tiny_encdec(dropout_output=0.3, dropout=0.2, output_kernels="plain", **flags).train()
    source, previous = torch.randint(4, 10, (3, 5)), torch.randint(4, 10, (3, num_steps))

    def run():
        _, extra = model(source, None, previous, target=torch.randint(4, 10, (3, num_steps)))
        extra["scores"].loss.backward()

    run()
    return count_launches(run)


@pytest.mark.parametrize(
    "output_layer, attention, expected, num_extra",
    [("full", "dot", 27, 0), ("full", "general", 27, 0), ("doc", "general", 29, 0), ("full", "mlp", 46, NUM_LAYERS)],
)
def test_a_decoder_step(output_layer, attention, expected, num_extra, monkeypatch):
    monkeypatch.setattr(recurrence, "gathers_gradients", lambda matrix: False)
    monkeypatch.setattr(lstm, "update", _FusedUpdate.apply)
    monkeypatch.setattr(attentional_lstm, "_add_product", torch.addmm)
    monkeypatch.setattr(attentional_lstm, "lstm_cell", _fused_cell)
    monkeypatch.setattr(attentional_lstm, "lstm_cell_backward", _fused_cell_backward)
    flags = dict(output_layer=output_layer, attention=attention)
    if output_layer == "doc":
        flags.update(experts_per_layer="0 1 1 2")
    six, seven = launches(6, **flags), launches(7, **flags)
    assert (seven - six).total() - num_extra == expected, seven - six
    assert waits(six) == Counter(_local_scalar_dense=1)  # the CPU's look for padding in the source
