"""LSTM with a masked hidden state against the recurrence written out."""

import plain_formulas
import pytest
import torch
from nearness import assert_near
from tensor_sizes import TensorSizes

from fairseq_plugins.ops.masked_lstm import masked_lstm

NAMES = ["inputs", "weight", "h", "c"]
SIZES = [(1, 1, 1), (5, 3, 4), (7, 1, 13), (2, 20, 33)]


def make(num_steps, num_rows, width, dtype=torch.float64):
    shapes = [(num_steps, num_rows, 4 * width), (4 * width, width), (num_rows, width), (num_rows, width)]
    mask = torch.randint(2, (num_rows, width)).to(dtype) * 2
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes], mask


def by_hand(inputs, weight, h, c, mask):
    share = torch.eye(inputs.size(-1), dtype=inputs.dtype)
    outputs, _, c = plain_formulas.lstm(inputs.transpose(0, 1), h, c, share, weight, 0.0, mask=mask)
    return outputs.transpose(0, 1), c


def run(tensors, mask):
    inputs, weight, h, c = tensors
    return masked_lstm(inputs, weight, mask, h, c)


@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_are_those_of_the_recurrence(sizes):
    tensors, mask = make(*sizes)
    found, expected = run(tensors, mask), by_hand(*tensors, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = [torch.randn_like(x) for x in expected]
    gradients = [
        torch.autograd.grad(sum((a * b).sum() for a, b in zip(result, weights)), tensors)
        for result in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_gradients_are_finite_differences():
    tensors, mask = make(4, 2, 3)
    assert torch.autograd.gradcheck(lambda *tensors: run(tensors, mask), tensors)


def test_where_nothing_learns_the_values_are_the_same_and_no_step_is_kept():
    num_steps, num_rows, width = 40, 3, 8
    tensors, mask = make(num_steps, num_rows, width)
    expected = run(tensors, mask)
    frozen = [x.detach() for x in tensors]
    peaks = []
    for given, mode in ((frozen, True), (frozen, False), (tensors, False), (tensors, True)):
        with torch.set_grad_enabled(mode), TensorSizes() as sizes:
            found = run(given, mask)
        assert all(map(torch.equal, found, expected))
        peaks.append(sizes.peak)
    results = num_steps * num_rows * width
    assert peaks[0] == peaks[1] == peaks[2] < 6 * results < 12 * results < peaks[3]


@pytest.mark.parametrize("frozen", NAMES)
def test_what_needs_no_gradient_changes_no_other(frozen):
    tensors, mask = make(5, 3, 4)
    learned = [x for name, x in zip(NAMES, tensors) if name != frozen]
    expected = torch.autograd.grad(run(tensors, mask)[0].square().sum(), learned)
    tensors[NAMES.index(frozen)] = tensors[NAMES.index(frozen)].detach()
    assert all(map(torch.equal, torch.autograd.grad(run(tensors, mask)[0].square().sum(), learned), expected))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_error_in_float32_is_that_of_the_recurrence_in_float32(sizes):
    tensors, mask = make(*sizes)
    exact = by_hand(*tensors, mask)[0]
    narrow = [x.detach().float() for x in tensors]
    errors = [(result[0] - exact).abs().max() for result in (run(narrow, mask.float()), by_hand(*narrow, mask.float()))]
    assert errors[0] <= 2 * errors[1] + 1e-7


def test_autocast_takes_the_products_in_16_bits():
    tensors, mask = make(5, 3, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, c = run(tensors, mask)
    assert outputs.dtype == c.dtype == torch.bfloat16
    (outputs.float().sum() + c.float().sum()).backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in tensors)
    assert_near(outputs, run(tensors, mask)[0])


def test_there_is_no_second_derivative():
    tensors, mask = make(3, 2, 2)
    (gradient, *_) = torch.autograd.grad(run(tensors, mask)[0].square().sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
