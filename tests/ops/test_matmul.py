"""Matrix products against float64, whatever kernel is at hand and however the operands lie in memory."""

import pytest
import torch

from fairseq_plugins.ops import matmul as module
from fairseq_plugins.ops.matmul import add_matmul, matmul, project


@pytest.fixture(params=["the fastest kernel", "torch's own"], autouse=True)
def kernel(request, monkeypatch):
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


@pytest.mark.parametrize("kernel", ["the fastest kernel"], indirect=True)
@pytest.mark.parametrize("layout", ["rows", "transposed", "strided"])
def test_the_fastest_kernel_reads_no_operand_with_gaps(layout, monkeypatch):
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
