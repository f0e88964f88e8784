"""Recurrent highway network over a sequence.

Shapes: T time steps, B batch rows, D width, L micro-layers.
"""

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.autograd_graph import is_recorded
from fairseq_plugins.ops.matmul import matmul
from fairseq_plugins.ops.precision import autocast_dtype


def recurrent_highway(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    s: Tensor,
    *,
    mask: Optional[Tensor] = None,
    keep: Optional[Tensor] = None,
) -> Tensor:
    """s <- (h - s) t + s for each micro-layer, with h = tanh(R_H (m s) + b_H), t = sigmoid(R_T (m s) + b_T).

    The first micro-layer adds the inputs to both sums. R holds the rows of R_H, then those of R_T, and b likewise. The
    backward pass is written out, so that the gradient of each R is one product over all steps. Where nothing learns,
    nothing is kept of a step but its result.

    Args:
        inputs: the input's share of the sums of the first micro-layer, (T, B, 2 D): of h, then of t.
        weights: R of each micro-layer, (2 D, D).
        biases: b of each, (2 D).
        s: state before the first step, (B, D).
        mask: m, (B, D), without gradient; by default ones.
        keep: factors of the state after each step, (T, B, 1), without gradient; by default ones.

    Returns:
        s after all steps, (T, B, D), differentiable once.
    """
    dtype = autocast_dtype(inputs) or inputs.dtype
    learns = is_recorded([inputs, s, *weights, *biases])
    factors = s.new_ones(1, 1) if mask is None else mask
    with torch.autocast(inputs.device.type, enabled=False):
        return _RecurrentHighway.apply(
            *(x.to(dtype) for x in (inputs, s, factors)),
            None if keep is None else keep.to(dtype),
            learns,
            *(x.to(dtype) for x in (*weights, *biases)),
        )


class _RecurrentHighway(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, inputs: Tensor, s: Tensor, mask: Tensor, keep: Optional[Tensor], learns: bool, *parameters: Tensor
    ) -> Tensor:
        num_steps, depth, (num_rows, width) = inputs.size(0), len(parameters) // 2, s.shape
        weights, biases = parameters[:depth], parameters[depth:]
        transposed = [weight.t() for weight in weights]
        outputs = s.new_empty(num_steps, num_rows, width)
        # a tensor a micro-layer: the C library reuses the memory of small ones
        size = (num_steps if learns else 1, num_rows, width)
        candidates, gates, states = ([s.new_empty(size) for _ in range(depth)] for _ in range(3))
        states[-1] = outputs
        steps = [[x.unbind(0) for x in kept] for kept in (candidates, gates, states)]
        start = s
        for t in range(num_steps):
            for layer in range(depth):
                candidate, gate, state = (kept[layer][t if len(kept[layer]) > 1 else 0] for kept in steps)
                sums = matmul(s * mask, transposed[layer], biases[layer])
                if layer == 0:
                    sums += inputs[t]
                torch.tanh(sums[:, :width], out=candidate)
                torch.sigmoid(sums[:, width:], out=gate)
                s = torch.lerp(s, candidate, gate, out=state)
            if keep is not None:
                s *= keep[t]
        ctx.save_for_backward(start, mask, keep, *weights, *candidates, *gates, *states)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor) -> Tuple[Optional[Tensor], ...]:
        start, mask, keep, *saved = ctx.saved_tensors
        depth = len(saved) // 4
        weights, candidates, gates, states = (saved[n * depth : (n + 1) * depth] for n in range(4))
        before = [torch.cat([start.unsqueeze(0), states[-1][:-1]]), *states[:-1]]
        num_steps, _, width = d_outputs.shape
        d_sums = [d_outputs.new_empty(*d_outputs.shape[:2], 2 * width) for _ in range(depth)]
        steps = list(zip(weights, *([x.unbind(0) for x in kept] for kept in (candidates, gates, before, d_sums))))
        d_s = torch.zeros_like(start)
        for t in reversed(range(num_steps)):
            d_s = d_s + d_outputs[t]
            if keep is not None:
                d_s *= keep[t]
            for weight, *kept in reversed(steps):
                candidate, gate, s, d_sum = (x[t] for x in kept)
                d_candidate = d_s * gate
                _tanh_backward(d_candidate, candidate, grad_input=d_sum[:, :width])
                _sigmoid_backward((candidate - s).mul_(d_s), gate, grad_input=d_sum[:, width:])
                d_s = torch.sub(d_s, d_candidate).addcmul_(matmul(d_sum, weight), mask)
        d_weights = [
            matmul(d.flatten(0, 1).t(), (s * mask).flatten(0, 1)) if wanted else None
            for wanted, d, s in zip(ctx.needs_input_grad[-2 * depth :], d_sums, before)
        ]
        return d_sums[0], d_s, None, None, None, *d_weights, *(d.sum(dim=(0, 1)) for d in d_sums)


_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
