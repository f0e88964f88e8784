"""Launches of a step of an attentional decoder in training, counted on a CPU with the branches that a GPU takes."""

from collections import Counter

import torch
from builders import build_tiny_encdec
from launches import count_launches, waits

from fairseq_plugins.modules import lstm
from fairseq_plugins.ops import recurrence

NUM_LAYERS = 2


class _FusedUpdate(torch.autograd.Function):
    """Stands for the kernel of a GPU: two launches forwards and one backwards, where that has one each."""

    @staticmethod
    def forward(ctx, gates, c):
        return gates[:, 0] + 0, c.clone()

    @staticmethod
    def backward(ctx, d_h, d_c):
        return torch.stack([d_h] * 4, dim=1), d_c


def launches(num_steps):
    model = build_tiny_encdec("full", dropout_output=0.3, dropout_hidden=0.2, output_kernels="plain").train()
    source, previous = torch.randint(4, 10, (3, 5)), torch.randint(4, 10, (3, num_steps))

    def run():
        _, extra = model(source, None, previous, target=torch.randint(4, 10, (3, num_steps)))
        extra["scores"].loss.backward()

    run()
    return count_launches(run)


def test_a_decoder_step(monkeypatch):
    monkeypatch.setattr(recurrence, "gathers_gradients", lambda matrix: False)
    monkeypatch.setattr(lstm, "update", _FusedUpdate.apply)
    six, seven = launches(6), launches(7)
    assert (seven - six).total() - NUM_LAYERS <= 35
    assert waits(six) == Counter(_local_scalar_dense=1)  # the CPU's look for padding in the source
