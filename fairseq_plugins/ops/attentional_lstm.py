"""All steps of an LSTM decoder with attention and input feeding as one function with a written-out backward pass.

Autograd would record some fifty operations a step, and add to the gradient of every matrix at each step. Here a step
takes 13 launches forwards and 14 backwards with two layers, and the gradient of each matrix is one product after the
loop.

Shapes: T steps, B sentences, S source positions, M width of the annotations, D_n width of layer n of N. The first layer
reads the last h~, of width D_0 = D_N.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.cuda_graphs import LoopGraphs, run_loop
from fairseq_plugins.ops.matmul import accumulation_dtype, matmul
from fairseq_plugins.ops.recurrence import lstm_cell, lstm_cell_backward, tanh_backward

LayerInput = Tuple[Tensor, Tensor, Tensor, Tensor, Optional[Tensor]]
"""Values of one layer: the precomputed part of the gates' sums, in the order i, f, g, o, (T, B, 4 D_n); the matrix that
reads the layer below and the layer's own last output, (4 D_n, D_{n-1} + D_n); h and c before the first step, (B, D_n);
factors of the output before the next layer reads it, (T, B, D_n), without gradient, or None.
"""


def attentional_lstm(
    layers: Sequence[LayerInput],
    fed: Tensor,
    *,
    keys: Tensor,
    annotations: Tensor,
    padding: Optional[Tensor],
    combine: Tensor,
    graphs: Optional[LoopGraphs] = None,
) -> Tuple[List[Tensor], Tensor, Tensor, List[Tuple[Tensor, Tensor]]]:
    """h~_t = tanh(W_c [h_t; c_t]), c_t = sum_i a_{t,i} e_i, a_t = softmax_i(h_t . k_i), where h_t is the last layer's
    output and the first layer reads h~_{t-1} (Luong et al. 2015).

    Where nothing learns, gates and cells of past steps are not kept.

    Args:
        layers: values of the layers, bottom first. The last one's factors are not read.
        fed: h~ before the first step, (B, D_N).
        keys: k, (B, S, D_N).
        annotations: e, (B, S, M).
        padding: True at positions that get no weight, (B, S), or None.
        combine: W_c, (D_N, D_N + M).
        graphs: of the loop, or None.

    Returns:
        the outputs of the layers, masked, (T, B, D_n); h~, (T, B, D_N); the weights a, (T, B, S), in float32 or wider;
        and h and c of each layer after the last step, (B, D_n). All are differentiable once.
    """
    tensors = [fed, keys, annotations, combine, *(x for layer in layers for x in layer[:4])]
    masks = [mask for *_, mask in layers[:-1]]
    mask = None
    if padding is not None:
        mask = torch.zeros_like(padding, dtype=keys.dtype).masked_fill_(padding, float("-inf")).unsqueeze(1)
    arguments = (len(layers), mask, *masks, *tensors)
    attention, top, *rest = run_loop(graphs, _AttentionalLSTM, *arguments, like=keys)
    outputs, h, c = (list(rest[n : n + len(layers)]) for n in range(0, len(rest), len(layers)))
    return outputs, top, attention, list(zip(h, c))


class _AttentionalLSTM(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, learns: bool, num_layers: int, source_mask: Optional[Tensor], *tensors: Any
    ) -> Tuple[Tensor, ...]:
        masks = tensors[: num_layers - 1]
        fed, keys, annotations, combine, *layers = tensors[num_layers - 1 :]
        inputs, weights, h, c = (list(layers[n::4]) for n in range(4))
        num_steps, num_rows = inputs[0].shape[:2]
        num_kept = num_steps if learns else 1  # without a backward pass all steps overwrite the same operands
        operands = [fed.new_empty(num_kept, num_rows, weight.size(1)) for weight in weights]
        combined = fed.new_empty(num_kept, num_rows, combine.size(1))
        top = fed.new_empty(num_rows, num_steps, fed.size(1)).transpose(0, 1)  # as output layers read it
        attention = fed.new_empty(num_steps, num_rows, keys.size(1), dtype=accumulation_dtype(fed))
        cells = [[x] for x in c]
        gates: List[List[Tensor]] = [[] for _ in c]
        results: List[List[Tensor]] = [[] for _ in c]
        matrices, scored = [weight.t() for weight in weights], keys.transpose(1, 2)
        for t in range(num_steps):
            kept, x = t if learns else 0, fed
            for n in range(len(weights)):
                operand = torch.cat([x, h[n]], dim=1, out=operands[n][kept])
                h[n], c[n], step_gates = lstm_cell(_add_product(inputs[n][t], operand, matrices[n]), c[n])
                mask = masks[n] if n < len(masks) else None
                x = h[n] if mask is None else h[n] * mask[t]
                if learns:
                    cells[n].append(c[n])
                    gates[n].append(step_gates)
                else:
                    results[n].append(x)
            query = x.unsqueeze(1)
            scores = torch.bmm(query, scored) if source_mask is None else torch.baddbmm(source_mask, query, scored)
            torch.softmax(scores.squeeze(1), dim=-1, dtype=attention.dtype, out=attention[t])
            context = torch.bmm(attention[t].to(fed.dtype).unsqueeze(1), annotations).squeeze(1)
            operand = torch.cat([x, context], dim=1, out=combined[kept])
            fed = torch.tanh(matmul(operand, combine.t()), out=top[t])
        ctx.masks = masks
        ctx.save_for_backward(
            *(keys, annotations, combine, attention, top, combined),
            *weights,
            *operands,
            *(x for steps in (*cells, *gates) for x in steps),
        )
        ctx.set_materialize_grads(False)
        if learns:  # what the next layer or attention read
            outputs = [operand[..., : x.size(1)] for operand, x in zip([*operands[1:], combined], h)]
        else:
            outputs = [torch.stack(steps, dim=1).transpose(0, 1) for steps in results]
        return attention, top, *outputs, *h, *c

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(
        ctx: Any, d_attention: Optional[Tensor], d_top: Optional[Tensor], *d_layers: Optional[Tensor]
    ) -> Tuple[Optional[Tensor], ...]:
        num_layers = len(d_layers) // 3
        keys, annotations, combine, attention, top, combined, *rest = ctx.saved_tensors
        num_steps, width, dtype = len(top), top.size(2), top.dtype
        weights, operands, rest = rest[:num_layers], rest[num_layers : 2 * num_layers], rest[2 * num_layers :]
        cells = [rest[n * (num_steps + 1) :] for n in range(num_layers)]
        gates = [rest[num_layers * (num_steps + 1) + n * num_steps :] for n in range(num_layers)]
        d_outputs, d_h = list(d_layers[:num_layers]), list(d_layers[num_layers : 2 * num_layers])
        d_c = [torch.zeros_like(x[0]) if d is None else d for d, x in zip(d_layers[2 * num_layers :], cells)]
        masks, d_fed = [*ctx.masks, None], None
        # a GPU's kernel makes new tensors, which one launch collects after the loop
        buffers = [None if top.is_cuda else top.new_empty(num_steps, *steps[0].shape) for steps in gates]
        d_gates: List[List[Tensor]] = [[] for _ in weights]
        d_contexts: List[Tensor] = []
        d_scores: List[Tensor] = []
        d_combined = top.new_empty(top.shape)
        for t in reversed(range(num_steps)):
            d = _sum(d_fed, None if d_top is None else d_top[t], like=top[t])
            tanh_backward(d, top[t], grad_input=d_combined[t])
            d_query, d_context = matmul(d_combined[t], combine).tensor_split([width], dim=1)
            d_weights = torch.bmm(d_context.unsqueeze(1), annotations.transpose(1, 2)).squeeze(1)
            if d_attention is not None:
                d_weights = d_weights + d_attention[t]
            d_weights = d_weights * attention[t]
            d_score = torch.addcmul(d_weights, attention[t], d_weights.sum(dim=1, keepdim=True), value=-1).to(dtype)
            d = torch.baddbmm(d_query.unsqueeze(1), d_score.unsqueeze(1), keys).squeeze(1)
            d_contexts.append(d_context)
            d_scores.append(d_score)
            for n in reversed(range(num_layers)):
                # d is the gradient of the output that the next layer or attention reads
                if (d_output := d_outputs[n]) is not None:
                    d = d + d_output[t]
                d_later, mask = d_h[n], masks[n]
                if mask is not None:
                    d = d * mask[t] if d_later is None else torch.addcmul(d_later, d, mask[t])
                elif d_later is not None:
                    d = d + d_later
                buffer = buffers[n]
                step, d_c[n] = lstm_cell_backward(
                    *(d, d_c[n], cells[n][t], cells[n][t + 1], gates[n][t]), out=None if buffer is None else buffer[t]
                )
                d_gates[n].append(step)
                split = weights[n].size(1) - d.size(1)
                d, d_h[n] = matmul(step, weights[n]).tensor_split([split], dim=1)
            d_fed = d
        d_inputs = [torch.stack(steps[::-1]) if buffer is None else buffer for buffer, steps in zip(buffers, d_gates)]
        d_matrices = [matmul(d.flatten(0, 1).t(), x.flatten(0, 1)) for d, x in zip(d_inputs, operands)]
        d_combine = matmul(d_combined.flatten(0, 1).t(), combined.flatten(0, 1))
        d_keys = torch.bmm(torch.stack(d_scores[::-1], dim=2), combined[..., :width].transpose(0, 1))
        d_annotations = torch.bmm(attention.to(dtype).permute(1, 2, 0), torch.stack(d_contexts[::-1], dim=1))
        d_tensors = (d for layer in zip(d_inputs, d_matrices, d_h, d_c) for d in layer)
        return (None, None, None, *[None] * (num_layers - 1), d_fed, d_keys, d_annotations, d_combine, *d_tensors)


def _add_product(precomputed: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
    """precomputed + x A, not shared with another tensor."""
    if x.is_cuda:
        return torch.addmm(precomputed, x, matrix)
    return matmul(x, matrix).add_(precomputed)


def _sum(a: Optional[Tensor], b: Optional[Tensor], *, like: Tensor) -> Tensor:
    """Sum of two gradients, either of which may be missing."""
    if a is None or b is None:
        return next((x for x in (a, b) if x is not None), torch.zeros_like(like))
    return a + b
