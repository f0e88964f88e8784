"""Launches of the loss on plain torch and of recurrences on the fused kernels of a GPU, which must not grow unseen."""

from functools import partial

import pytest
import torch
from operations import count_launches, waits

from fairseq_plugins.ops import kernels, mogrifier, recurrence
from fairseq_plugins.ops.mixture_loss import mixture_nll
from fairseq_plugins.ops.mogrifier import mogrifier_lstm
from fairseq_plugins.ops.recurrence import masked_lstm, recurrent_highway

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


class OneLaunch:
    """Stand for the kernels of whole cells, with one launch each. The values are not theirs."""

    @staticmethod
    def lstm_cell(gates, c, product=None):
        return gates[:, : c.size(1)], c, gates + 0

    @staticmethod
    def lstm_cell_backward(d_h, d_c, former, c, gates, out=None):
        return gates + 0, d_c

    @staticmethod
    def fused_gru(gates, rest, s):
        return s + 0, gates.new_empty(len(s), 5 * s.size(1))

    @staticmethod
    def fused_gru_backward(d_s, workspace):
        return workspace.new_zeros(len(d_s), 3 * d_s.size(1)), d_s


def launches_of_a_step(function, inputs, *others):
    """Launches of a further step of a recurrence, both ways. In float64 a CPU takes the products of a GPU."""

    def run(num_steps):
        outputs = function(torch.randn(num_steps, *inputs, dtype=torch.float64, requires_grad=True), *others)
        (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).sum().backward()

    run(1)  # gradients are added to those that there are
    six, seven = (count_launches(partial(run, num_steps)) for num_steps in (6, 7))
    assert not waits(seven)
    return (seven - six).total()


B, D, K, RANK = 3, 4, 5, 2


def weights(*shapes):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.fixture
def fused(monkeypatch):
    monkeypatch.setattr(recurrence, "has_fused_gru", lambda x: True)
    for name in ("lstm_cell", "lstm_cell_backward", "fused_gru", "fused_gru_backward"):
        monkeypatch.setattr(recurrence, name, getattr(OneLaunch, name))
        if hasattr(mogrifier, name):
            monkeypatch.setattr(mogrifier, name, getattr(OneLaunch, name))


def test_launches_of_a_masked_lstm(fused):
    weight, h, c = weights((4 * D, D), (B, D), (B, D))
    assert launches_of_a_step(masked_lstm, (B, 4 * D), weight, torch.ones(B, D).double(), h, c) <= 8


@pytest.mark.parametrize("depth", [1, 8])
def test_launches_of_a_highway_network(depth, fused):
    matrices, biases, (s,) = weights(*[(2 * D, D)] * depth), weights(*[(2 * D,)] * depth), weights((B, D))
    run = partial(recurrent_highway, mask=torch.ones(B, D).double())
    assert launches_of_a_step(run, (B, 2 * D), matrices, biases, s) <= 6 * depth + 1


@pytest.mark.parametrize("rank, at_most", [(0, 39), (RANK, 49)])
def test_launches_of_a_mogrifier(rank, at_most, fused):
    rounds = []
    for n in range(5):
        gated, read = (K, D) if n % 2 == 0 else (D, K)
        rounds.append((*weights((gated,)), weights((rank, read), (gated, rank)) if rank else weights((gated, read))))
    weight, bias, h, c = weights((4 * D, K + D), (4 * D,), (B, D), (B, D))
    run = partial(mogrifier_lstm, mask=torch.ones(B, D).double())
    assert launches_of_a_step(run, (B, K), rounds, weight, bias, h, c) <= at_most
