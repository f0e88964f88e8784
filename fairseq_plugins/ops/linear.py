"""A linear map by the fastest kernel at hand, which may read chosen features only.

Shapes: N rows, C features, K chosen features, D outputs.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import matmul
from fairseq_plugins.ops.precision import autocast_dtype


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor], *, features: Optional[Tensor] = None) -> Tensor:
    """x[:, features] weight' + bias, at the price of the chosen features' products.

    Args:
        x: (N, C).
        weight: (D, K), or (D, C) without ``features``.
        bias: (D), or None.
        features: indices of the features to read, (K), int64, without repeats; by default all.

    Returns:
        (N, D), differentiable once.
    """
    dtype = autocast_dtype(x) or x.dtype
    with torch.autocast(x.device.type, enabled=False):
        return _Linear.apply(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype), features)


class _Linear(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], features: Optional[Tensor]) -> Tensor:
        chosen = x if features is None else x.index_select(1, features)
        ctx.save_for_backward(chosen, weight, features)
        ctx.num_features = x.size(1)
        return matmul(chosen, weight.t(), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], None]:
        chosen, weight, features = ctx.saved_tensors
        d_x = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_x = matmul(gradient, weight)
            if features is not None:
                d_x = gradient.new_zeros(len(gradient), ctx.num_features).index_copy_(1, features, d_x)
        if ctx.needs_input_grad[1]:
            d_weight = matmul(gradient.t(), chosen)
        if ctx.needs_input_grad[2]:
            d_bias = gradient.sum(dim=0)
        return d_x, d_weight, d_bias, None
