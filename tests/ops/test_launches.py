"""Launches of the loss on plain torch, which must not grow unseen, and a recurrence on the fused kernels of a GPU."""

import pytest
import torch
from launches import count_launches, waits

from fairseq_plugins.ops import kernels, recurrence
from fairseq_plugins.ops.mixture_loss import mixture_nll
from fairseq_plugins.ops.recurrence import masked_lstm

NUM_TOKENS, NUM_EXPERTS, VOCAB_SIZE, WIDTH = 64, 3, 10_002, 8


def launches_of_loss(dtype, *, chunk_size, **options):
    tensors = {
        "latents": torch.randn(NUM_TOKENS, NUM_EXPERTS, WIDTH, dtype=dtype),
        "log_prior": torch.log_softmax(torch.randn(NUM_TOKENS, NUM_EXPERTS), dim=-1),
        "weight": torch.randn(VOCAB_SIZE, WIDTH, dtype=dtype),
        "bias": torch.randn(VOCAB_SIZE, dtype=dtype),
    }
    for tensor in tensors.values():
        tensor.requires_grad_()
    target = torch.randint(VOCAB_SIZE, (NUM_TOKENS,))

    def run():
        mixture_nll(**tensors, target=target, kernels=kernels.PLAIN, chunk_size=chunk_size, **options).loss.backward()

    run()  # the first call finds out which products torch has
    return count_launches(run)


@pytest.mark.parametrize(
    "dtype, options, at_most, for_a_chunk",
    [
        (torch.float32, {}, 68, 40),
        (torch.float32, {"label_smoothing": 0.1}, 104, 68),
        (torch.float32, {"chunk_dtype": torch.bfloat16}, 92, 49),
        (torch.bfloat16, {}, 71, 43),
    ],
)
def test_launches_of_the_loss(dtype, options, at_most, for_a_chunk):
    one, two = (launches_of_loss(dtype, chunk_size=NUM_TOKENS // num, **options) for num in (1, 2))
    assert one.total() <= at_most
    assert two.total() - one.total() <= for_a_chunk


def test_nothing_waits_for_the_device():
    weights = torch.ones(NUM_TOKENS).index_fill(0, torch.arange(10), 0)
    assert not waits(launches_of_loss(torch.float32, chunk_size=20, token_weights=weights))


def test_the_fused_kernels_take_the_steps_of_a_masked_lstm(monkeypatch):
    """The kernels of a GPU, by their formulas, give what the CPU's steps give."""

    def cell(inputs, product, c):
        i, f, g, o = (inputs + product).chunk(4, dim=1)
        gates = torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], dim=1)
        i, f, g, o = gates.chunk(4, dim=1)
        c = f * c + i * g
        return o * c.tanh(), c, gates

    def cell_backward(d_h, d_c, former, c, gates):
        with torch.enable_grad():
            leaves = former.detach().requires_grad_(), gates.detach().requires_grad_()
            i, f, g, o = leaves[1].chunk(4, dim=1)
            new = f * leaves[0] + i * g
            d_former, d_gates = torch.autograd.grad([o * new.tanh(), new], leaves, [d_h, d_c])
        i, f, g, o = gates.chunk(4, dim=1)
        slopes = torch.cat([i * (1 - i), f * (1 - f), 1 - g.square(), o * (1 - o)], dim=1)
        return d_gates * slopes, d_former

    monkeypatch.setattr(recurrence, "fused_cell", cell)
    monkeypatch.setattr(recurrence, "fused_cell_backward", cell_backward)
    shapes = (5, 3, 16), (16, 4), (3, 4), (3, 4)
    inputs, weight, h, c = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    mask = torch.randint(2, (3, 4)).double() * 2
    results = {}
    for name, function in [("steps", recurrence._MaskedLSTM), ("fused", recurrence._FusedMaskedLSTM)]:
        monkeypatch.setattr(recurrence, "_MaskedLSTM", function)
        found = masked_lstm(inputs, weight, mask, h, c)
        weights = [torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view_as(x) for x in found]
        loss = sum((x * factor).sum() for x, factor in zip(found, weights))
        results[name] = [*found, *torch.autograd.grad(loss, [inputs, weight, h, c])]
        with torch.no_grad():
            results[f"{name}, scored"] = [*masked_lstm(inputs, weight, mask, h, c)]
    for ours, expected in [("fused", "steps"), ("fused, scored", "steps, scored")]:
        torch.testing.assert_close(results[ours], results[expected], rtol=1e-12, atol=1e-12)
