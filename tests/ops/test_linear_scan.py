"""The scan of a linear recurrence against the recurrence written out."""

import pytest
import torch
from tensor_sizes import TensorSizes

from fairseq_plugins.ops.linear_scan import linear_scan, scan_by_doubling_, scan_by_steps_

SIZES = [(1, 1, 1), (2, 3, 5), (7, 2, 4), (8, 1, 3), (33, 4, 6)]

every_size = pytest.mark.parametrize("sizes", SIZES)
every_scan = pytest.mark.parametrize("scan", [scan_by_steps_, scan_by_doubling_])


def make(num_steps, num_rows, width, dtype=torch.float64):
    shapes = [(num_steps, num_rows, width), (width,), (num_rows, width)]
    inputs, factors, start = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in (inputs, torch.tanh(factors).detach(), start)]


def by_hand(inputs, factors, start):
    outputs = []
    for u in inputs:
        start = u + factors * start
        outputs.append(start)
    return torch.stack(outputs)


@every_size
@every_scan
def test_both_ways_are_the_recurrence(sizes, scan):
    inputs, factors, start = (tensor.detach() for tensor in make(*sizes))
    expected, place = by_hand(inputs, factors, start), inputs.clone()
    assert scan(place, factors, start) is place
    torch.testing.assert_close(place, expected, rtol=1e-12, atol=1e-12)


@every_size
@every_scan
def test_values_and_gradients_are_those_of_the_recurrence(sizes, scan, monkeypatch):
    monkeypatch.setattr("fairseq_plugins.ops.linear_scan.scan_", scan)
    tensors = make(*sizes)
    found, expected = linear_scan(*tensors), by_hand(*tensors)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((result * weights).sum(), tensors) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_gradients_are_finite_differences():
    assert torch.autograd.gradcheck(linear_scan, make(4, 2, 3))


def test_inputs_stay_as_they_are():
    tensors = make(5, 2, 3)
    before = [tensor.detach().clone() for tensor in tensors]
    linear_scan(*tensors).sum().backward()
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(tensors, before))


def test_sums_of_16_bits_are_formed_in_32():
    """0.995 is 0.9961 in bfloat16, whose sums would stop to grow."""
    inputs = torch.ones(400, 1, 1, dtype=torch.bfloat16)
    found = linear_scan(inputs, torch.tensor([0.995]), torch.zeros(1, 1))
    assert found.dtype == torch.bfloat16
    assert found[-1].item() == pytest.approx((1 - 0.995**400) / (1 - 0.995), rel=0.01)


def test_no_tensor_is_larger_than_the_inputs():
    inputs, factors, start = make(64, 5, 20, torch.float32)
    with TensorSizes() as sizes:
        linear_scan(inputs, factors, start).sum().backward()
    assert sizes.largest == inputs.numel()
