"""Matrix products against float64, whatever kernel is at hand and however the operands lie in memory."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.ops import matmul as module
from fairseq_plugins.ops.matmul import add_matmul, backward_keeps_graph, linear, matmul, project


@pytest.fixture(params=["oneDNN's kernel", "torch's own"], autouse=True)
def kernel(request, monkeypatch):
    monkeypatch.setattr(module, "mkl_is_faster", lambda: False)
    if request.param == "torch's own":
        monkeypatch.setattr(module, "_onednn_linear", lambda dtype: None)


def draw(rows, columns, layout, dtype):
    x = (
        torch.randn(columns, rows, dtype=torch.float64)
        if layout == "transposed"
        else torch.randn(rows, columns).double()
    )
    x = x.t() if layout == "transposed" else x
    return torch.cat([x, x], dim=1).to(dtype)[:, :columns] if layout == "strided" else x.to(dtype)


layouts = pytest.mark.parametrize("layout", ["rows", "transposed", "strided"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])


def assert_product(result, a, b, added, dtype):
    expected = a.double() @ b.double() + added
    tolerance = 8 * torch.finfo(dtype).eps
    scale = a.double().abs() @ b.double().abs() + abs(added)
    assert ((result.double() - expected).abs() <= tolerance * scale).all()


@layouts
@dtypes
@pytest.mark.parametrize("sizes", [(5, 7, 11), (1, 1, 1), (40, 3, 1), (0, 3, 4)])
def test_matmul(sizes, layout, dtype):
    m, k, n = sizes
    a, b, bias = draw(m, k, layout, dtype), draw(k, n, layout, dtype), torch.randn(n).to(dtype)
    assert_product(matmul(a, b), a, b, torch.zeros(()), dtype)
    assert_product(matmul(a, b, bias), a, b, bias.double(), dtype)
    assert matmul(a, b).dtype == dtype


@layouts
@dtypes
def test_add_matmul(layout, dtype):
    a, b = draw(6, 5, layout, dtype), draw(5, 3, layout, dtype)
    for total_dtype in {dtype, torch.promote_types(dtype, torch.float32)}:
        before = torch.randn(6, 3).to(total_dtype)
        total = before.clone()
        add_matmul(total, a, b)
        assert_product(total, a, b, before.double(), dtype)


@dtypes
@pytest.mark.parametrize("with_bias", [False, True])
def test_projected_rows_in_a_wider_type(with_bias, dtype):
    rows, weight = draw(6, 5, "rows", dtype), draw(7, 5, "rows", dtype)
    for wide in {dtype, torch.promote_types(dtype, torch.float32)}:
        bias = torch.randn(7).to(wide) if with_bias else None
        logits = project(rows, weight, bias, dtype=wide)
        assert logits.dtype == wide
        assert_product(logits, rows, weight.t(), bias.double() if with_bias else torch.zeros(()), dtype)


@pytest.mark.parametrize("kernel", ["oneDNN's kernel"], indirect=True)
@pytest.mark.parametrize("layout", ["rows", "transposed", "strided"])
def test_onednns_kernel_reads_no_operand_with_gaps(layout, monkeypatch):
    """It is a thousand times slower where the elements of a row or a column do not lie side by side."""
    library, read = module._onednn_linear(torch.float32), []

    def spy(x, weight, bias):
        read.extend((x, weight))
        return library(x, weight, bias)

    monkeypatch.setattr(module, "_onednn_linear", lambda dtype: library and spy)
    a, b = draw(6, 5, layout, torch.float32), draw(5, 3, layout, torch.float32)
    assert_product(matmul(a, b), a, b, torch.zeros(()), torch.float32)
    add_matmul(torch.zeros(6, 3), a, b)
    assert len(read) == (0 if library is None else 4)
    assert all(x.is_contiguous() or x.t().is_contiguous() for x in read)


def test_a_large_product_is_added_in_place(monkeypatch):
    monkeypatch.setattr(module, "MAX_PRODUCT_BYTES", 4 * 50 * 20 - 1)
    monkeypatch.setattr(module, "matmul", lambda *args: pytest.fail("the product was held"))
    a, b, total = torch.randn(50, 30), torch.randn(30, 20), torch.zeros(50, 20)
    add_matmul(total, a, b)
    assert_product(total, a, b, torch.zeros(()), torch.float32)


def test_an_operator_that_torch_has_changed_is_left_alone(monkeypatch):
    monkeypatch.undo()
    module._onednn_linear.cache_clear()
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *args: torch.zeros(2, 2), raising=False)
    try:
        assert module._onednn_linear(torch.float32) is None
    finally:
        monkeypatch.undo()
        module._onednn_linear.cache_clear()


@pytest.mark.parametrize("vendor, is_intel", [("GenuineIntel", True), ("AuthenticAMD", False), (None, False)])
def test_processors_by_intel_take_mkls_products_in_float32(vendor, is_intel, tmp_path, monkeypatch):
    monkeypatch.undo()
    if vendor is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\n")
    monkeypatch.setattr(module, "Path", lambda path: tmp_path / "cpuinfo")
    monkeypatch.setattr(module, "mkl_is_faster", module.mkl_is_faster.__wrapped__)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(module, "_onednn_linear", lambda dtype: dtype)
    assert module.onednn_kernel(torch.ones(1)) == (None if is_intel else torch.float32)
    assert module.onednn_kernel(torch.ones(1).bfloat16()) == torch.bfloat16


SIZES = [(7, 5, 2, 3), (252, 7, 6, 13), (123, 11, 1, 1), (1, 1, 1, 1), (40, 3, 3, 50)]
NOTHING_TO_MULTIPLY = [(5, 4, 0, 3), (0, 4, 2, 3), (0, 4, 0, 3)]


def draw_linear(num_labels, width, num_chosen, out_width, dtype=torch.float64):
    shapes = (num_labels, width), (out_width, num_chosen), (out_width,)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes], torch.randperm(width)[:num_chosen]


def chosen_linear(x, weight, bias, features):
    """As the label network calls it."""
    return linear(x if features is None else x.index_select(1, features), weight, bias)


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
    inputs, features = draw_linear(*sizes)
    result, expected = chosen_linear(*inputs, features), formula(*inputs, features)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (result, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES)
def test_narrow_types_are_as_exact_as_they_can_be(sizes, dtype):
    for features_given in (True, False):
        num_labels, width, num_chosen, out_width = sizes
        inputs, features = draw_linear(num_labels, width, num_chosen if features_given else width, out_width, dtype)
        features = features if features_given else None
        result = chosen_linear(*inputs, features)
        assert result.dtype == dtype
        assert_rounded_only(result, inputs, features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_may_come_expanded(dtype):
    inputs, features = draw_linear(6, 5, 3, 4, dtype)
    ours = torch.autograd.grad(chosen_linear(*inputs, features).sum(), inputs)
    theirs = torch.autograd.grad(chosen_linear(*inputs, features), inputs, torch.ones(6, 4, dtype=dtype))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize(
    "sizes, dtype",
    [(sizes, dtype) for dtype in (torch.bfloat16, torch.float32) for sizes in NOTHING_TO_MULTIPLY],
)
def test_nothing_to_multiply(sizes, dtype):
    inputs, features = draw_linear(*sizes, dtype)
    result = chosen_linear(*inputs, features)
    result.sum().backward()
    assert torch.equal(result, inputs[2].expand_as(result))
    assert not inputs[0].grad.any() and not inputs[1].grad.any()
    assert torch.equal(inputs[2].grad, torch.full_like(inputs[2], len(result)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_in_bfloat16_and_gradients_have_the_types_of_the_inputs(dtype):
    inputs, features = draw_linear(23, 9, 4, 5, dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = chosen_linear(*inputs, features)
    assert result.dtype == torch.bfloat16
    assert all(g.dtype == dtype for g in torch.autograd.grad(result.sum(), inputs, retain_graph=True))
    assert_rounded_only(result, inputs, features)


def test_autocast_leaves_float64_alone():
    inputs, features = draw_linear(23, 9, 4, 5)
    plain = chosen_linear(*inputs, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(chosen_linear(*inputs, features), plain)


def products(inputs, features, backward=True):
    """Multiply-adds."""
    with FlopCounterMode(display=False) as counter:
        result = chosen_linear(*inputs, features)
        if backward:
            result.sum().backward()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("num_chosen", [1, 4, 10])
def test_only_the_chosen_features_are_multiplied_forward_and_backward(num_chosen):
    inputs, features = draw_linear(50, 10, num_chosen, 7)
    assert products(inputs, features, backward=False) == 50 * num_chosen * 7
    assert products(inputs, features) == 3 * 50 * num_chosen * 7


@pytest.mark.parametrize("needed", range(3))
def test_gradients_that_nobody_needs_are_not_computed(needed):
    inputs, features = draw_linear(50, 10, 4, 7)
    for i, x in enumerate(inputs):
        x.requires_grad_(i == needed)
    assert products(inputs, features) == 50 * 4 * 7 * (1 if needed == 2 else 2)
    assert [x.grad is not None for x in inputs] == [i == needed for i in range(3)]


def test_without_a_gradient_to_compute_the_result_has_none():
    inputs, features = draw_linear(5, 4, 2, 3)
    with torch.no_grad():
        assert not chosen_linear(*inputs, features).requires_grad
    assert not chosen_linear(*(x.detach() for x in inputs), features).requires_grad


def test_the_backward_pass_keeps_the_chosen_features_only():
    inputs, features = draw_linear(50, 10, 4, 7)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        chosen_linear(*inputs, features)
    assert max(sizes) == 50 * 4


def test_a_second_derivative_is_refused():
    inputs, features = draw_linear(5, 4, 2, 3)
    loss = chosen_linear(*inputs, features).square().sum()
    (gradient,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, answers):
        ctx.answers = answers
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        ctx.answers.append(backward_keeps_graph())
        return 2 * grad, None


def test_the_answer_is_what_was_asked_for():
    answers = []
    y = Asks.apply(torch.ones((), requires_grad=True), answers)
    y.backward(retain_graph=True)
    y.backward()
    assert answers == [True, False]


def test_where_torch_cannot_tell_the_graph_is_kept(monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    assert backward_keeps_graph()
