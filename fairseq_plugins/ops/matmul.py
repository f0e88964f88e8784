"""Matrix products without gradients, by the fastest kernel at hand."""

from functools import lru_cache
from typing import Callable, Optional

import torch
from torch import Tensor

CACHED_BYTES = 2 * 2**20
"""A block of a sum that stays in a core's cache."""
MAX_PRODUCT_BYTES = 64 * 2**20
"""A larger product is added to its total in place, which oneDNN cannot do."""


def matmul(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a b + bias, without a gradient.

    In float32 on a CPU it is oneDNN's product. Torch takes MKL's, which on processors by AMD is half as fast. In
    bfloat16 torch takes oneDNN's as well, but adds the bias in a pass of its own.

    Args:
        a: (m, k).
        b: (k, n).
        bias: (n).

    Returns:
        (m, n), not shared with another tensor.
    """
    if _takes_onednn(a):
        linear = _onednn_linear(a.dtype)
        assert linear is not None
        return linear(_dense(a), _dense(b.t()), bias)
    return a @ b if bias is None else torch.addmm(bias, a, b)


def add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b, as of :func:`matmul`, to ``total`` (m, n), which may be of a wider type."""
    if total.dtype != a.dtype:
        _add_narrow(total, a @ b)
    elif _takes_onednn(a) and total.numel() * total.itemsize <= MAX_PRODUCT_BYTES:
        total.add_(matmul(b.t(), a.t()).t())  # for a tall result faster than a b
    else:
        total.addmm_(a, b)


def _add_narrow(total: Tensor, product: Tensor) -> None:
    """Add a product of a narrower type, in blocks that stay in the cache: as one sum it takes ten times as long."""
    num_rows = max(1, CACHED_BYTES // (total.size(1) * total.itemsize)) if total.size(1) else 1
    for block, part in zip(total.split(num_rows), product.split(num_rows)):
        block.add_(part.to(total.dtype))


def project(rows: Tensor, weight: Tensor, bias: Optional[Tensor], *, dtype: torch.dtype) -> Tensor:
    """Logits W k + b of rows k, (n * J, V), in ``dtype``, which may be wider than that of the operands."""
    if dtype == rows.dtype:
        return matmul(rows, weight.t(), None if bias is None else bias.to(dtype))
    logits = matmul(rows, weight.t()).to(dtype)
    return logits if bias is None else logits.add_(bias)


def _takes_onednn(x: Tensor) -> bool:
    wanted = x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and x.numel() > 0
    return wanted and _onednn_linear(x.dtype) is not None


def _dense(x: Tensor) -> Tensor:
    """x, or a copy if its elements do not lie side by side: then oneDNN is a thousand times slower."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@lru_cache(maxsize=None)
def _onednn_linear(dtype: torch.dtype) -> Optional[Callable[[Tensor, Tensor, Optional[Tensor]], Tensor]]:
    """x W' + b by the operator that torch.compile uses; None where torch has none for the type or has changed it."""

    def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    x = torch.arange(6, dtype=dtype).view(2, 3)
    try:
        works = torch.equal(linear(x, x, x.new_ones(2)), x @ x.t() + 1)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return linear if works else None
