"""Matrix products by the fastest kernel at hand, their precision, and what autograd does around them."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, Tuple

import torch
from torch import Tensor

CACHED_BYTES = 2 * 2**20
"""A block of a sum that stays in a core's cache."""
MAX_PRODUCT_BYTES = 64 * 2**20
"""A larger product is added to its total in place, which oneDNN cannot do."""
CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in /proc/cpuinfo of processors with products in bfloat16: x86 with vectors, x86 with tiles, Arm."""


def matmul(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a b + bias, without a gradient.

    In float32 on a CPU it is oneDNN's product, except on Intel's processors. Torch would take MKL's, which is half as
    fast on processors by AMD. In bfloat16 torch takes oneDNN's, too, but adds the bias in a pass of its own.

    Args:
        a: (m, k).
        b: (k, n).
        bias: (n).

    Returns:
        (m, n), not shared with another tensor.
    """
    kernel = onednn_kernel(a)
    if kernel is not None:
        return kernel(_dense(a), _dense(b.t()), bias)
    return a @ b if bias is None else torch.addmm(bias, a, b)


def add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product a b to ``total`` (m, n), which may be of a wider type."""
    if total.dtype != a.dtype:
        # in blocks that stay in the cache: as one sum it takes ten times as long
        num_rows = max(1, CACHED_BYTES // (total.size(1) * total.itemsize)) if total.size(1) else 1
        for block, part in zip(total.split(num_rows), (a @ b).split(num_rows)):
            block.add_(part.to(total.dtype))
    elif onednn_kernel(a) is not None and total.numel() * total.itemsize <= MAX_PRODUCT_BYTES:
        total.add_(matmul(b.t(), a.t()).t())  # faster than a b if the result is tall
    else:
        total.addmm_(a, b)


def project(rows: Tensor, weight: Tensor, bias: Optional[Tensor], *, dtype: torch.dtype) -> Tensor:
    """Scores W k + b of rows k, (m, V), in ``dtype``, which may be wider than the operands' type."""
    if dtype == rows.dtype:
        return matmul(rows, weight.t(), None if bias is None else bias.to(dtype))
    if rows.is_cuda and dtype == torch.float32 and has_wide_products(rows.dtype):
        logits = torch.mm(rows, weight.t(), out_dtype=dtype)
    else:
        logits = matmul(rows, weight.t()).to(dtype)
    return logits if bias is None else logits.add_(bias)


def onednn_kernel(x: Tensor) -> Optional[Callable[[Tensor, Tensor, Optional[Tensor]], Tensor]]:
    """oneDNN's x W' + b, or None where torch's own product is used."""
    if torch.compiler.is_compiling():  # a test of the operator would fail, and its result is cached
        return None
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16) or not x.numel():
        return None
    return None if x.dtype == torch.float32 and mkl_is_faster() else _onednn_linear(x.dtype)


def _dense(x: Tensor) -> Tensor:
    """x, or a copy if it has gaps in memory, with which oneDNN is a thousand times slower."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@lru_cache(maxsize=None)
def _onednn_linear(dtype: torch.dtype) -> Optional[Callable[[Tensor, Tensor, Optional[Tensor]], Tensor]]:
    """x W' + b by the operator that torch.compile uses, or None where torch has none for the type or has changed it."""

    def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    x = torch.arange(6, dtype=dtype).view(2, 3)
    try:
        works = torch.equal(linear(x, x, x.new_ones(2)), x @ x.t() + 1)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return linear if works else None


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """x weight' + bias of x (*, C), weight (D, C) and bias (D) or None: (*, D), differentiable once."""
    if torch.compiler.is_compiling():  # torch.export keeps neither the function below nor oneDNN's operator
        return torch.nn.functional.linear(x, weight, bias)
    dtype = product_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        rows = x.to(dtype).reshape(x.shape[:-1].numel(), x.size(-1))
        result = _Linear.apply(rows, weight.to(dtype), None if bias is None else bias.to(dtype))
    return result.view(*x.shape[:-1], weight.size(0))


class _Linear(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul(x, weight.t(), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, weight = ctx.saved_tensors
        d_x = matmul(gradient, weight) if ctx.needs_input_grad[0] else None
        d_weight = matmul(gradient.t(), x) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, gradient.sum(dim=0) if ctx.needs_input_grad[2] else None


# Precision


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float32 for 16-bit tensors, otherwise the tensor's own type."""
    return torch.promote_types(x.dtype, torch.float32)


def autocast_dtype(x: Tensor) -> Optional[torch.dtype]:
    """The 16-bit type that autocast would take products of ``x`` in, or None where it would leave them alone."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def product_dtype(x: Tensor) -> torch.dtype:
    """The type that products of ``x`` are taken in: autocast's, or its own."""
    return autocast_dtype(x) or x.dtype


@lru_cache(maxsize=None)
def has_native_bfloat16(device: torch.device) -> bool:
    """Whether the processor has instructions for products in bfloat16; False where it cannot be known."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return not CPU_FLAGS.isdisjoint(_cpu_description("flags|Features").split())


@lru_cache(maxsize=None)
def mkl_is_faster() -> bool:
    """Whether MKL's products in float32 are faster than oneDNN's: on processors by Intel, up to twice for few rows."""
    return torch.backends.mkl.is_available() and _cpu_description("vendor_id").strip() == "GenuineIntel"


def _cpu_description(names: str) -> str:
    """The first line of /proc/cpuinfo with one of these names, a pattern, or "" where it cannot be known."""
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    line = re.search(rf"^(?:{names})\s*:(.*)$", described, flags=re.MULTILINE)
    return "" if line is None else line.group(1)


@lru_cache(maxsize=None)
def has_wide_products(dtype: torch.dtype) -> bool:
    """Whether torch gives products of 16-bit operands in float32 on CUDA: from 2.8 on."""
    a, total = torch.ones(16, 16, dtype=dtype, device="cuda"), torch.ones(16, 16, device="cuda")
    try:
        torch.addmm(total, a, a, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


# Autograd


def is_recorded(inputs: Iterable[Tensor]) -> bool:
    """Whether autograd records what is computed from these: gradients are enabled, and one needs its gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def backward_keeps_graph() -> bool:
    """Whether the backward pass that is running may be followed by another through the same graph.

    Where torch cannot tell, the answer is yes.
    """
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else asked()
