"""Recurrent highway network over a sequence.

Shapes: T time steps, B batch rows, D width, L micro-layers.
"""

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

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
    """s <- (h - s) t + s for each micro-layer, with (tanh^-1 h, sigmoid^-1 t) = R (m s) + b, and inputs in the first.

    The two matrices of a micro-layer are one product. The backward pass is written out, so that the gradient of each R
    is one product over all steps. Without gradients nothing is kept of a step but its result.

    Args:
        inputs: the input's share of the first micro-layer, (T, B, 2 D), candidates h before transform gates t.
        weights: R of each micro-layer, (2 D, D).
        biases: b of each, (2 D).
        s: state before the first step, (B, D).
        mask: m, (B, D), without gradient; by default ones.
        keep: factors of the state after each step, (T, B, 1), without gradient; by default ones.

    Returns:
        s after all steps, (T, B, D), differentiable once.
    """
    dtype = autocast_dtype(inputs) or inputs.dtype
    factors = s.new_ones(1, 1) if mask is None else mask
    with torch.autocast(inputs.device.type, enabled=False):
        return _RecurrentHighway.apply(
            *(x.to(dtype) for x in (inputs, s, factors)),
            None if keep is None else keep.to(dtype),
            torch.is_grad_enabled(),
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
        num_kept = num_steps if learns else 1
        kept = [s.new_empty(depth, num_kept, num_rows, width) for _ in ("read", "candidate", "gate", "change")]
        read, candidates, gates, changes = ([part.unbind(0) for part in tensor.unbind(0)] for tensor in kept)
        outputs = s.new_empty(num_steps, num_rows, width)
        for t in range(num_steps):
            place = t if learns else 0
            for layer in range(depth):
                masked = torch.mul(s, mask, out=read[layer][place])
                sums = matmul(masked, transposed[layer], biases[layer])
                if layer == 0:
                    sums += inputs[t]
                candidate = torch.tanh(sums[:, :width], out=candidates[layer][place])
                gate = torch.sigmoid(sums[:, width:], out=gates[layer][place])
                change = torch.sub(candidate, s, out=changes[layer][place])
                s = torch.addcmul(s, change, gate)
            s = torch.mul(s, 1 if keep is None else keep[t], out=outputs[t])
        ctx.save_for_backward(mask, keep, *kept, *weights)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor) -> Tuple[Optional[Tensor], ...]:
        mask, keep, *kept = ctx.saved_tensors
        (read, candidate, gate, change), weights = kept[:4], kept[4:]
        depth, num_steps, num_rows, width = read.shape
        candidates, gates, changes = ([part.unbind(0) for part in x.unbind(0)] for x in (candidate, gate, change))
        d_sums = read.new_empty(depth, num_steps, num_rows, 2 * width)
        d_parts = [part.unbind(0) for part in d_sums.unbind(0)]
        d_s = torch.zeros_like(d_outputs[0])
        for t in reversed(range(num_steps)):
            d_s = d_s + d_outputs[t]
            if keep is not None:
                d_s *= keep[t]
            for layer in reversed(range(depth)):
                d_part, d_candidate = d_parts[layer][t], d_s * gates[layer][t]
                _tanh_backward(d_candidate, candidates[layer][t], grad_input=d_part[:, :width])
                _sigmoid_backward(d_s * changes[layer][t], gates[layer][t], grad_input=d_part[:, width:])
                d_s = torch.sub(d_s, d_candidate).addcmul_(matmul(d_part, weights[layer]), mask)
        learns = ctx.needs_input_grad[-2 * depth : -depth]
        d_weights = [
            matmul(d.flatten(0, 1).t(), x.flatten(0, 1)) if wanted else None
            for wanted, d, x in zip(learns, d_sums, read)
        ]
        return d_sums[0], d_s, None, None, None, *d_weights, *d_sums.sum(dim=(1, 2))


_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
