"""Recurrent highway networks over a sequence against the recurrence written out."""

import plain_formulas
import pytest
import torch
from nearness import assert_near
from tensor_sizes import TensorSizes

from fairseq_plugins.ops.recurrent_highway import recurrent_highway

SIZES = [(1, 1, 1, 1), (5, 3, 4, 2), (7, 1, 13, 3), (2, 20, 33, 5)]
EXTRAS = ["mask", "keep"]

every_extra = pytest.mark.parametrize("extras", [[], ["mask"], ["keep"], EXTRAS], ids=lambda names: "+".join(names))


def make(num_steps, num_rows, width, depth, dtype=torch.float64):
    """Tensors with gradients, those of the micro-layers at the end, and factors of the state without."""
    shapes = [(num_steps, num_rows, 2 * width), (num_rows, width)]
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    tensors += [torch.randn(2 * width, width, dtype=dtype) / width**0.5 for _ in range(depth)]
    tensors += [torch.randn(2 * width, dtype=dtype) for _ in range(depth)]
    mask = torch.randint(2, (num_rows, width)).to(dtype) * 2
    keep = torch.randint(2, (num_steps, num_rows, 1)).to(dtype)
    return [tensor.requires_grad_() for tensor in tensors], {"mask": mask, "keep": keep}


def run(tensors, factors):
    inputs, s, *parameters = tensors
    depth = len(parameters) // 2
    return recurrent_highway(inputs, parameters[:depth], parameters[depth:], s, **factors)


def by_hand(tensors, factors):
    inputs, s, *parameters = tensors
    depth, share = len(parameters) // 2, torch.eye(inputs.size(-1), dtype=inputs.dtype)
    outputs = []
    for t, x in enumerate(inputs):
        micro_layers, mask = list(zip(parameters[:depth], parameters[depth:])), factors.get("mask", 1.0)
        _, s = plain_formulas.recurrent_highway(x.unsqueeze(1), s, share, micro_layers, mask=mask)
        s = s * factors["keep"][t] if "keep" in factors else s
        outputs.append(s)
    return torch.stack(outputs)


@every_extra
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_are_those_of_the_recurrence(sizes, extras):
    tensors, factors = make(*sizes)
    factors = {name: factors[name] for name in extras}
    found, expected = run(tensors, factors), by_hand(tensors, factors)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((result * weights).sum(), tensors) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_gradients_are_finite_differences():
    tensors, factors = make(3, 2, 3, 2)
    assert torch.autograd.gradcheck(lambda *tensors: run(tensors, factors), tensors)


def test_without_gradients_the_values_are_the_same():
    tensors, factors = make(6, 3, 4, 3)
    with torch.no_grad():
        found = run(tensors, factors)
    assert torch.equal(found, run(tensors, factors)) and not found.requires_grad


def test_a_frozen_network_keeps_no_more_than_one_without_gradients():
    num_steps, num_rows, width, depth = 40, 3, 8, 2
    tensors, factors = make(num_steps, num_rows, width, depth)
    frozen = [x.detach() for x in tensors]
    peaks = []
    for given, mode in ((frozen, True), (frozen, False), (tensors, True)):
        with torch.set_grad_enabled(mode), TensorSizes() as sizes:
            run(given, factors)
        peaks.append(sizes.peak)
    results = num_steps * num_rows * width
    assert peaks[0] == peaks[1] < 4 * results < (2 + 3 * depth) * results < peaks[2]


@pytest.mark.parametrize("frozen", range(6))
def test_what_needs_no_gradient_changes_no_other(frozen):
    tensors, factors = make(5, 3, 4, 2)
    learned = [x for n, x in enumerate(tensors) if n != frozen]
    expected = torch.autograd.grad(run(tensors, factors).square().sum(), learned)
    tensors[frozen] = tensors[frozen].detach()
    assert all(map(torch.equal, torch.autograd.grad(run(tensors, factors).square().sum(), learned), expected))


def test_a_second_backward_pass_gives_the_same():
    tensors, factors = make(5, 3, 4, 2)
    total = run(tensors, factors).square().sum()
    first = torch.autograd.grad(total, tensors, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(total, tensors)))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_error_in_float32_is_that_of_the_recurrence_in_float32(sizes):
    tensors, factors = make(*sizes)
    exact = by_hand(tensors, factors)
    narrow, narrow_factors = [x.detach().float() for x in tensors], {name: x.float() for name, x in factors.items()}
    errors = [(function(narrow, narrow_factors) - exact).abs().max() for function in (run, by_hand)]
    assert errors[0] <= 2 * errors[1] + 1e-7


def test_autocast_takes_the_products_in_16_bits():
    tensors, factors = make(5, 3, 4, 2, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = run(tensors, factors)
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in tensors)
    assert_near(outputs, run(tensors, factors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_16_bits_runs(dtype):
    tensors, factors = make(5, 3, 4, 2)
    narrow = [x.detach().to(dtype).requires_grad_() for x in tensors]
    outputs = run(narrow, {name: x.to(dtype) for name, x in factors.items()})
    assert outputs.dtype == dtype
    outputs.sum().backward()
    assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in narrow)
    assert_near(outputs, run(tensors, factors))


def test_there_is_no_second_derivative():
    tensors, factors = make(3, 2, 2, 2)
    (gradient, *_) = torch.autograd.grad(run(tensors, factors).square().sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
