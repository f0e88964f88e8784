"""The linear map of chosen features against x[:, features] W' + b."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.ops import matmul as matmul_module
from fairseq_plugins.ops.linear import linear

SIZES = [(7, 5, 2, 3), (252, 7, 6, 13), (123, 11, 1, 1), (1, 1, 1, 1), (40, 3, 3, 50)]
NOTHING_TO_MULTIPLY = [(5, 4, 0, 3), (0, 4, 2, 3), (0, 4, 0, 3)]


def draw(num_labels, width, num_chosen, out_width, dtype=torch.float64):
    shapes = (num_labels, width), (out_width, num_chosen), (out_width,)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes], torch.randperm(width)[:num_chosen]


def formula(x, weight, bias, features):
    return (x if features is None else x[:, features]) @ weight.T + bias


def in_float64(inputs, features, upstream):
    """The formula's result and gradients."""
    inputs = [x.detach().double().requires_grad_() for x in inputs]
    result = formula(*inputs, features)
    return [result, *torch.autograd.grad(result, inputs, upstream.double())]


def assert_rounded_only(result, inputs, features):
    upstream = torch.randn(result.shape).to(result.dtype)
    rounded = [x.to(result.dtype) for x in inputs]
    ours = [result, *torch.autograd.grad(result, inputs, upstream)]
    expected = in_float64(rounded, features, upstream)
    scale = in_float64([x.abs() for x in rounded], features, upstream.abs())
    for ours_, expected_, scale_ in zip(ours, expected, scale):
        assert ((ours_.double() - expected_).abs() <= 8 * torch.finfo(result.dtype).eps * scale_).all()


@pytest.mark.parametrize("sizes", SIZES + NOTHING_TO_MULTIPLY)
def test_result_and_gradients_are_those_of_the_formula(sizes):
    inputs, features = draw(*sizes)
    result, expected = linear(*inputs, features=features), formula(*inputs, features)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (result, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_chosen", [0, 3, 5])
def test_gradcheck(num_chosen):
    inputs, features = draw(4, 5, num_chosen, 2)
    assert torch.autograd.gradcheck(lambda *inputs: linear(*inputs, features=features), inputs)


def test_by_default_all_features_are_read():
    inputs, _ = draw(6, 4, 4, 3)
    assert torch.equal(linear(*inputs), linear(*inputs, features=torch.arange(4)))
    assert torch.autograd.gradcheck(linear, inputs)


@pytest.mark.parametrize("kernel", ["the fastest kernel", "torch's own"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES)
def test_narrow_types_are_as_exact_as_they_can_be(sizes, dtype, kernel, monkeypatch):
    if kernel == "torch's own":
        monkeypatch.setattr(matmul_module, "_onednn_linear", lambda dtype: None)
    for features_given in (True, False):
        num_labels, width, num_chosen, out_width = sizes
        inputs, features = draw(num_labels, width, num_chosen if features_given else width, out_width, dtype)
        features = features if features_given else None
        result = linear(*inputs, features=features)
        assert result.dtype == dtype
        assert_rounded_only(result, inputs, features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_may_come_expanded(dtype):
    inputs, features = draw(6, 5, 3, 4, dtype)
    ours = torch.autograd.grad(linear(*inputs, features=features).sum(), inputs)
    theirs = torch.autograd.grad(linear(*inputs, features=features), inputs, torch.ones(6, 4, dtype=dtype))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize(
    "sizes, dtype",
    [(sizes, dtype) for dtype in (torch.bfloat16, torch.float32) for sizes in NOTHING_TO_MULTIPLY],
)
def test_nothing_to_multiply(sizes, dtype):
    inputs, features = draw(*sizes, dtype)
    result = linear(*inputs, features=features)
    result.sum().backward()
    assert torch.equal(result, inputs[2].expand_as(result))
    assert not inputs[0].grad.any() and not inputs[1].grad.any()
    assert torch.equal(inputs[2].grad, torch.full_like(inputs[2], len(result)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_in_bfloat16_and_gradients_have_the_types_of_the_inputs(dtype):
    inputs, features = draw(23, 9, 4, 5, dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = linear(*inputs, features=features)
    assert result.dtype == torch.bfloat16
    assert all(g.dtype == dtype for g in torch.autograd.grad(result.sum(), inputs, retain_graph=True))
    assert_rounded_only(result, inputs, features)


def test_autocast_leaves_float64_alone():
    inputs, features = draw(23, 9, 4, 5)
    plain = linear(*inputs, features=features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(*inputs, features=features), plain)


def products(inputs, features, backward=True):
    """Multiply-adds."""
    with FlopCounterMode(display=False) as counter:
        result = linear(*inputs, features=features)
        if backward:
            result.sum().backward()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("num_chosen", [1, 4, 10])
def test_only_the_chosen_features_are_multiplied_forward_and_backward(num_chosen):
    inputs, features = draw(50, 10, num_chosen, 7)
    assert products(inputs, features, backward=False) == 50 * num_chosen * 7
    assert products(inputs, features) == 3 * 50 * num_chosen * 7


@pytest.mark.parametrize("needed", range(3))
def test_gradients_that_nobody_needs_are_not_computed(needed):
    inputs, features = draw(50, 10, 4, 7)
    for i, x in enumerate(inputs):
        x.requires_grad_(i == needed)
    assert products(inputs, features) == 50 * 4 * 7 * (1 if needed == 2 else 2)
    assert [x.grad is not None for x in inputs] == [i == needed for i in range(3)]


def test_without_a_gradient_to_compute_the_result_has_none():
    inputs, features = draw(5, 4, 2, 3)
    with torch.no_grad():
        assert not linear(*inputs, features=features).requires_grad
    assert not linear(*(x.detach() for x in inputs), features=features).requires_grad


def test_the_backward_pass_keeps_the_chosen_features_only():
    inputs, features = draw(50, 10, 4, 7)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        linear(*inputs, features=features)
    assert max(sizes) == 50 * 4


def test_a_second_derivative_is_refused():
    inputs, features = draw(5, 4, 2, 3)
    loss = linear(*inputs, features=features).square().sum()
    (gradient,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
