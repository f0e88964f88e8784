"""LSTM over a sequence whose hidden state is masked before the recurrent matrix.

Shapes: T time steps, B batch rows, D width.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.autograd_graph import is_recorded
from fairseq_plugins.ops.matmul import matmul
from fairseq_plugins.ops.precision import autocast_dtype


def masked_lstm(inputs: Tensor, weight: Tensor, mask: Tensor, h: Tensor, c: Tensor) -> Tuple[Tensor, Tensor]:
    """i, f, o = sigmoid(.), g = tanh(.) of inputs_t + U (m h'); c = f c' + i g, h = o tanh(c).

    The backward pass is written out, so that the gradient of U is one product over all steps. Where nothing learns,
    nothing is kept of a step but its h.

    Args:
        inputs: the input's share of the gates with the biases, (T, B, 4 D) in the order i, f, g, o.
        weight: U, (4 D, D).
        mask: m, (B, D), without gradient.
        h, c: state before the first step, (B, D).

    Returns:
        h of all steps, (T, B, D), and c after the last, (B, D), differentiable once.
    """
    dtype = autocast_dtype(inputs) or inputs.dtype
    learns = is_recorded([inputs, weight, h, c])
    with torch.autocast(inputs.device.type, enabled=False):
        return _MaskedLSTM.apply(*(x.to(dtype) for x in (inputs, weight, mask, h, c)), learns)


class _MaskedLSTM(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, mask: Tensor, h: Tensor, c: Tensor, learns: bool
    ) -> Tuple[Tensor, Tensor]:
        num_steps, num_rows, width = inputs.size(0), *h.shape
        num_kept = num_steps if learns else 1
        gates = inputs.new_empty(num_kept, num_rows, 4 * width)
        masked = h.new_empty(num_kept, num_rows, width)
        cells = h.new_empty(num_kept + 1, num_rows, width)
        squashed_cells = h.new_empty(num_kept, num_rows, width)
        outputs = h.new_empty(num_steps, num_rows, width)
        cells[0] = c
        transposed = weight.t()
        for t in range(num_steps):
            kept = t if learns else 0
            torch.mul(h, mask, out=masked[kept])
            torch.add(inputs[t], matmul(masked[kept], transposed), out=gates[kept])
            i, f, g, o = gates[kept].chunk(4, dim=1)
            gates[kept, :, : 2 * width].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            c = torch.mul(f, c, out=cells[kept + 1]).addcmul_(i, g)
            torch.tanh(c, out=squashed_cells[kept])
            h = torch.mul(o, squashed_cells[kept], out=outputs[t])
        ctx.save_for_backward(weight, mask, gates, masked, cells, squashed_cells)
        return outputs, c.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor, d_c: Tensor) -> Tuple[Optional[Tensor], ...]:
        weight, mask, gates, masked, cells, squashed_cells = ctx.saved_tensors
        d_gates = torch.empty_like(gates)
        d_h = torch.zeros_like(mask)
        for t in reversed(range(gates.size(0))):
            i, f, g, o = gates[t].chunk(4, dim=1)
            d_i, d_f, d_g, d_o = d_gates[t].chunk(4, dim=1)
            d_h = d_h + d_outputs[t]
            torch.mul(d_h, squashed_cells[t], out=d_o)
            d_c = torch.addcmul(d_c, d_h * o, 1 - squashed_cells[t].square())
            torch.mul(d_c, g, out=d_i)
            torch.mul(d_c, cells[t], out=d_f)
            torch.mul(d_c, i * (1 - g.square()), out=d_g)
            for d_gate, gate in ((d_i, i), (d_f, f), (d_o, o)):
                d_gate.mul_(gate).mul_(1 - gate)
            d_c = d_c * f
            d_h = matmul(d_gates[t], weight).mul_(mask)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = matmul(d_gates.flatten(0, 1).t(), masked.flatten(0, 1))
        return d_gates, d_weight, None, d_h, d_c, None
