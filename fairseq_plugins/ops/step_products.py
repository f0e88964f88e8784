"""Products of a sequence's steps with one matrix.

Shapes: T time steps, B batch rows, K features of an operand, D features of a product.
"""

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.autograd_graph import backward_keeps_graph
from fairseq_plugins.ops.matmul import matmul
from fairseq_plugins.ops.precision import autocast_dtype


class StepProducts:
    """known_t + x_t A for the steps t = 0 .. T-1 of a sequence, where x_t depends on the step before.

    Autograd forms a gradient of A at every step and adds them up. Here the gradient of ``known`` gathers those of all
    results instead, and A's is one product of it with all operands; results are then differentiable once. On a GPU,
    where Python takes longer than small kernels do, it is autograd's own way, but in 16 bits, where sums lose digits.

    Args:
        known: what the products are added to, (T, B, D).
        matrix: A, (K, D), or one for each row, (B, K, D).
    """

    def __init__(self, known: Tensor, matrix: Tensor):
        dtype = autocast_dtype(matrix) or matrix.dtype
        known, matrix = known.to(dtype), matrix.to(dtype)
        self._gathers = gathers_gradients(matrix)
        self._operands: List[Optional[Tensor]] = [None] * len(known)
        self._learns = torch.is_grad_enabled() and matrix.requires_grad
        if self._gathers:
            known, matrix = _GatherGradients.apply(known, matrix, self._operands), matrix.detach()
        self._known, self._matrix = known.unbind(0), matrix

    def __call__(self, t: int, x: Tensor) -> Tensor:
        """Result (B, D) of step t for x (B, K); a step is taken once."""
        x = x.to(self._matrix.dtype)
        with torch.autocast(x.device.type, enabled=False):
            if not self._gathers:
                return _add_product(self._known[t], x, self._matrix)
            if self._learns:
                assert self._operands[t] is None
                self._operands[t] = x.detach()
            return _AddProduct.apply(self._known[t], x, self._matrix)


def gathers_gradients(matrix: Tensor) -> bool:
    """Whether the gradient of a matrix is formed after all steps."""
    return not matrix.is_cuda or matrix.dtype in (torch.bfloat16, torch.float16)


def _add_product(known: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
    """known + x A, differentiable in all three."""
    if matrix.dim() == 3:
        return torch.baddbmm(known.unsqueeze(1), x.unsqueeze(1), matrix).squeeze(1)
    return torch.addmm(known, x, matrix)


class _GatherGradients(torch.autograd.Function):
    """``known``, whose gradient holds those of all steps' results."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, known: Tensor, matrix: Tensor, operands: List[Optional[Tensor]]) -> Tensor:
        ctx.operands = operands
        ctx.matrix_shape = matrix.shape
        ctx.is_spent = False
        return known.view_as(known)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_results: Tensor) -> Tuple[Tensor, Optional[Tensor], None]:
        if not ctx.needs_input_grad[1]:
            return d_results, None, None
        if ctx.is_spent:
            raise RuntimeError("the operands are gone after a backward pass: give it retain_graph=True")
        taken = [t for t, operand in enumerate(ctx.operands) if operand is not None]
        operands = [ctx.operands[t] for t in taken]
        if not backward_keeps_graph():
            ctx.operands.clear()
            ctx.is_spent = True
        if not taken:
            return d_results, d_results.new_zeros(ctx.matrix_shape), None
        d_taken = d_results if len(taken) == len(d_results) else d_results[taken]
        return d_results, _matrix_gradient(torch.stack(operands), d_taken, num_dims=len(ctx.matrix_shape)), None


def _matrix_gradient(operands: Tensor, d_results: Tensor, *, num_dims: int) -> Tensor:
    """Sum over the steps of x_t' dy_t: operands (T, B, K), gradients (T, B, D)."""
    if num_dims == 3:
        return torch.bmm(operands.permute(1, 2, 0), d_results.transpose(0, 1))
    return matmul(d_results.flatten(0, 1).t(), operands.flatten(0, 1)).t()


class _AddProduct(torch.autograd.Function):
    """known + x A, where A has its gradient elsewhere."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, known: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        if matrix.dim() == 3:
            return torch.bmm(x.unsqueeze(1), matrix).squeeze(1).add_(known)
        return matmul(x, matrix).add_(known)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_result: Tensor) -> Tuple[Tensor, Optional[Tensor], None]:
        (matrix,) = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return d_result, None, None
        if matrix.dim() == 3:
            return d_result, torch.bmm(d_result.unsqueeze(1), matrix.transpose(1, 2)).squeeze(1), None
        return d_result, matmul(d_result, matrix.t()), None
