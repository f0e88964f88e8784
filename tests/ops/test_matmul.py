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
    if layout == "transposed":
        return torch.randn(columns, rows).to(dtype).t()
    x = torch.randn(rows, columns).to(dtype)
    return torch.cat([x, x], dim=1)[:, :columns] if layout == "strided" else x


layouts = pytest.mark.parametrize("layout", ["rows", "transposed", "strided"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])


def assert_product(result, a, b, added, dtype):
    expected = a.double() @ b.double() + added
    tolerance = 8 * torch.finfo(dtype).eps
    scale = a.double().abs() @ b.double().abs() + abs(added)
    assert ((result.double() - expected).abs() <= tolerance * scale).all()


@layouts
@dtypes
def test_matmul(layout, dtype):
    for m, k, n in ((5, 7, 11), (1, 1, 1), (40, 3, 1), (0, 3, 4)):
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
@layouts
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


def draw_linear(num_rows, width, out_width, dtype=torch.float64):
    """x, weight and bias."""
    shapes = (num_rows, width), (out_width, width), (out_width,)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def in_float64(inputs, upstream):
    """The formula's result and gradients."""
    x, weight, bias = inputs = [x.detach().double().requires_grad_() for x in inputs]
    result = x @ weight.T + bias
    return [result, *torch.autograd.grad(result, inputs, upstream.double())]


def assert_rounded_only(result, inputs):
    upstream = torch.randn(result.shape).to(result.dtype)
    rounded = [x.to(result.dtype) for x in inputs]
    ours = [result, *torch.autograd.grad(result, inputs, upstream)]
    expected = in_float64(rounded, upstream)
    scale = in_float64([x.abs() for x in rounded], upstream.abs())
    for ours_, expected_, scale_ in zip(ours, expected, scale):
        assert ((ours_.double() - expected_).abs() <= 8 * torch.finfo(result.dtype).eps * scale_).all()


@dtypes
def test_result_and_gradients_are_as_exact_as_they_can_be(dtype):
    for sizes in ((252, 6, 13), (123, 1, 1), (1, 1, 1), (40, 3, 50), (5, 0, 3), (0, 2, 3)):
        inputs = draw_linear(*sizes, dtype)
        result = linear(*inputs)
        assert result.dtype == dtype
        assert_rounded_only(result, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_may_come_expanded(dtype):
    inputs = draw_linear(6, 3, 4, dtype)
    ours = torch.autograd.grad(linear(*inputs).sum(), inputs)
    theirs = torch.autograd.grad(linear(*inputs), inputs, torch.ones(6, 4, dtype=dtype))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_in_bfloat16_and_gradients_have_the_types_of_the_inputs(dtype):
    inputs = draw_linear(23, 4, 5, dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = linear(*inputs)
    assert result.dtype == torch.bfloat16
    assert all(g.dtype == dtype for g in torch.autograd.grad(result.sum(), inputs, retain_graph=True))
    assert_rounded_only(result, inputs)


def test_autocast_leaves_float64_alone():
    inputs = draw_linear(23, 4, 5)
    plain = linear(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(*inputs), plain)


@pytest.mark.parametrize("needed, num_products", [([0], 2), ([1], 2), ([2], 1), ([0, 1, 2], 3)])
def test_gradients_that_nobody_needs_are_not_computed(needed, num_products):
    inputs = draw_linear(50, 4, 7)
    for i, x in enumerate(inputs):
        x.requires_grad_(i in needed)
    with FlopCounterMode(display=False) as counter:
        linear(*inputs).sum().backward()
    assert counter.get_total_flops() / 2 == num_products * 50 * 4 * 7
    assert [i for i, x in enumerate(inputs) if x.grad is not None] == needed


def test_the_backward_pass_keeps_the_operands_only():
    inputs, sizes = draw_linear(50, 4, 7), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        linear(*inputs)
    assert max(sizes) == 50 * 4


def test_a_second_derivative_is_refused():
    inputs = draw_linear(5, 2, 3)
    loss = linear(*inputs).square().sum()
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
