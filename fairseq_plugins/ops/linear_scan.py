"""A linear recurrence with one factor a feature, over a sequence.

Shapes: T time steps, B batch rows, D features.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.precision import accumulation_dtype


def linear_scan(inputs: Tensor, factors: Tensor, start: Tensor) -> Tensor:
    """x_t = u_t + r * x_{t-1} for all steps.

    A step is one small kernel on a CPU. On a GPU, whose kernels take longer to start than such a step, log2 T passes
    over the whole sequence take the place of T steps. Sums of 16-bit tensors are formed in float32.

    Args:
        inputs: u, (T, B, D).
        factors: r, (D).
        start: x before the first step, (B, D).

    Returns:
        x after all steps, (T, B, D) in the type of ``inputs``, differentiable once.
    """
    dtype = accumulation_dtype(inputs)
    with torch.autocast(inputs.device.type, enabled=False):
        return _LinearScan.apply(*(x.to(dtype) for x in (inputs, factors, start))).to(inputs.dtype)


class _LinearScan(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, inputs: Tensor, factors: Tensor, start: Tensor) -> Tensor:
        outputs = scan_(inputs.clone(), factors, start)
        ctx.save_for_backward(factors, start, outputs)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor) -> Tuple[Optional[Tensor], ...]:
        factors, start, outputs = ctx.saved_tensors
        # the same recurrence from the last step to the first
        d_inputs = scan_(d_outputs.flip(0), factors, torch.zeros_like(start)).flip(0)
        d_factors = None
        if ctx.needs_input_grad[1]:
            d_factors = (d_inputs[0] * start).sum(dim=0) + (d_inputs[1:] * outputs[:-1]).sum(dim=(0, 1))
        return d_inputs, d_factors, d_inputs[0] * factors


def scan_(x: Tensor, factors: Tensor, start: Tensor) -> Tensor:
    """The recurrence in the place of its inputs x, (T, B, D), by what is faster on their device."""
    return scan_by_doubling_(x, factors, start) if x.is_cuda else scan_by_steps_(x, factors, start)


def scan_by_steps_(x: Tensor, factors: Tensor, start: Tensor) -> Tensor:
    """x_t <- x_t + r x_{t-1}, one step after the other."""
    before = start
    for step in x.unbind(0):
        before = step.addcmul_(before, factors)
    return x


def scan_by_doubling_(x: Tensor, factors: Tensor, start: Tensor) -> Tensor:
    """x_t <- x_t + r^s x_{t-s} for the shifts s = 1, 2, 4, ..., each for all steps at once (Hillis & Steele 1986)."""
    x[0].addcmul_(start, factors)
    shift = 1
    while shift < len(x):
        x[shift:] += x[:-shift] * factors
        factors, shift = factors.square(), 2 * shift
    return x
