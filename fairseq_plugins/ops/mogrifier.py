"""The recurrence of a Mogrifier LSTM, with a written-out backward pass and few launches a step.

Shapes: T time steps, B batch rows, K width of the input x, D width of the hidden state h, R rank of a round's matrix.
"""

from itertools import chain, islice
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.cuda_graphs import LoopGraphs, run_loop
from fairseq_plugins.ops.matmul import backward_keeps_graph, matmul, onednn_kernel
from fairseq_plugins.ops.recurrence import lstm_cell, lstm_cell_backward


def mogrifier_lstm(
    inputs: Tensor,
    rounds: Sequence[Tuple[Tensor, Sequence[Tensor]]],
    weight: Tensor,
    bias: Tensor,
    h: Tensor,
    c: Tensor,
    *,
    mask: Optional[Tensor] = None,
    graphs: Optional[LoopGraphs] = None,
) -> Tuple[Tensor, Tensor]:
    """An LSTM that reads x and h after they have gated each other, with a capped input gate (Melis et al. 2020).

    Round n = 0, 2, ... is x <- 2 sigmoid(Q h + b) x, round n = 1, 3, ... is h <- 2 sigmoid(Q x + b) h. Then i, f, o =
    sigmoid(.) and g = tanh(.) of W [x; h] + b; c <- f c + min(i, 1 - f) g, h = o tanh(c). Where nothing learns, only h
    is kept of each step.

    Args:
        inputs: x of each step, (T, B, K).
        rounds: b of each round and its matrices: Q, or two whose product is Q, the second times the first.
        weight: W, (4 D, K + D), in the order i, f, g, o.
        bias: b, (4 D).
        h, c: state before the first step, (B, D).
        mask: factors of h before the rounds, (B, D), without gradient; by default ones.
        graphs: of the loop, or None.

    Returns:
        h of all steps, (T, B, D), and c after the last, (B, D), differentiable once.
    """
    parameters = [tensor for b, matrices in rounds for tensor in (b, *matrices)]
    arguments = (len(rounds), inputs, h, c, mask, weight, bias, *parameters)
    return run_loop(graphs, _MogrifierLSTM, *arguments, like=inputs)


_glu = torch.ops.aten.glu.out  # a sigmoid(b) of (a, b) side by side


class _MogrifierLSTM(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any,
        learns: bool,
        num_rounds: int,
        inputs: Tensor,
        h: Tensor,
        c: Tensor,
        mask: Optional[Tensor],
        weight: Tensor,
        bias: Tensor,
        *parameters: Tensor,
    ) -> Tuple[Tensor, Tensor]:
        rounds = _split(parameters, num_rounds)
        num_kept = len(inputs) if learns else 1  # without a backward pass all steps overwrite the same buffers
        shape = (num_kept, len(h))
        operands = h.new_empty(*shape, inputs.size(2) + h.size(1))
        # for each round the gated value and, beside it, the gate's pre-activations
        pairs = [h.new_empty(*shape, 2 * len(b)) for b, *_ in rounds]
        lows = [h.new_empty(*shape, len(first)) for _, first, *others in rounds if others]
        values = _values(pairs, operands, inputs.size(2))
        scales = [2.0 ** (len(of_one) - 1) for of_one in values]  # the factors 2 of all rounds
        factors = scales[1] if mask is None else mask * scales[1]
        results = h.new_empty(0 if learns else len(inputs), *h.shape)
        outputs: List[Tensor] = []
        gates: List[Tensor] = []
        capped: List[Tensor] = []
        cells = [c.contiguous()]
        for t in range(len(inputs)):
            kept = t if learns else 0
            if kept == 0:  # for all kept steps, what does not depend on the step before
                torch.mul(inputs[t : t + num_kept], scales[0], out=values[0][0])
                for (b, *_), pair in zip(rounds, pairs):
                    pair[..., len(b) :] = b
            torch.mul(h, factors, out=values[1][0][kept])
            for n, (b, *matrices) in enumerate(rounds):
                read = values[1 - n % 2][(n + 1) // 2][kept]
                if len(matrices) == 2:
                    read = _product(read, matrices[0].t(), out=lows[n][kept])
                _accumulate_product(pairs[n][kept, :, len(b) :], read, matrices[-1].t(), _scale(n, len(rounds)))
                _glu(pairs[n][kept], 1, out=values[n % 2][n // 2 + 1][kept])
            sums = matmul(operands[kept], weight.t(), bias)
            i, f, _, _ = sums.chunk(4, dim=1)
            cap = f.neg()  # min(sigmoid(i), 1 - sigmoid(f)) = sigmoid(min(i, -f))
            if learns:
                capped.append(i > cap)
            torch.minimum(i, cap, out=i)
            h, c, step_gates = lstm_cell(sums, cells[-1])
            if learns:
                outputs.append(h)
                cells.append(c)
                gates.append(step_gates)
            else:
                results[t], cells[0] = h, c
        groups = (parameters, pairs, lows, cells, gates, capped)
        ctx.sizes = [len(group) for group in groups]
        ctx.save_for_backward(mask, weight, operands, *chain.from_iterable(groups if learns else ()))
        return torch.stack(outputs) if learns else results, c.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor, d_c: Tensor) -> Tuple[Optional[Tensor], ...]:
        mask, weight, operands, *saved = ctx.saved_tensors
        rest = iter(saved)
        parameters, pairs, lows, cells, gates, capped = (list(islice(rest, size)) for size in ctx.sizes)
        rounds, width_in = _split(parameters, len(pairs)), operands.size(2) - d_c.size(1)
        if backward_keeps_graph():
            pairs, gates = ([x.clone() for x in group] for group in (pairs, gates))
        values = _values(pairs, operands, width_in)
        scales = [2.0 ** (len(of_one) - 1) for of_one in values]
        factors = scales[1] if mask is None else mask * scales[1]
        d_inputs, d_h = operands.new_empty(*d_outputs.shape[:2], width_in), torch.zeros_like(d_c)
        d_lows = [torch.empty_like(low) for low in lows]
        for t in reversed(range(len(gates))):
            d_gates, d_c = lstm_cell_backward(d_h + d_outputs[t], d_c, cells[t], cells[t + 1], gates[t])
            d_i, d_f, _, _ = d_gates.chunk(4, dim=1)
            d_f.addcmul_(d_i, capped[t], value=-1)
            d_i.masked_fill_(capped[t], 0)
            d_values = list(matmul(d_gates, weight).tensor_split([width_in], dim=1))
            for n, (b, *matrices) in reversed(list(enumerate(rounds))):
                d_pair = torch.ops.aten.glu_backward(d_values[n % 2], pairs[n][t], 1)
                d_values[n % 2], d_read = d_pair.tensor_split([len(b)], dim=1)
                pairs[n][t, :, len(b) :] = d_read  # the gradients of pre-activations replace them
                if len(matrices) == 2:
                    d_read = _product(d_read, matrices[1], out=d_lows[n][t])
                _accumulate_product(d_values[1 - n % 2], d_read, matrices[0], _scale(n, len(rounds)))
            gates[t].copy_(d_gates)
            torch.mul(d_values[0], scales[0], out=d_inputs[t])
            d_h = d_values[1] * factors
        d_sums = torch.stack(gates).flatten(0, 1)
        d_weight, d_bias = matmul(d_sums.t(), operands.flatten(0, 1)), d_sums.sum(dim=0)
        d_parameters: List[Tensor] = []
        for n, (b, *matrices) in enumerate(rounds):
            read = values[1 - n % 2][(n + 1) // 2].flatten(0, 1)
            d_sums = pairs[n][..., len(b) :].flatten(0, 1)
            d_parameters.append(d_sums.sum(dim=0))
            if len(matrices) == 2:
                d_parameters.append(matmul(d_lows[n].flatten(0, 1).t(), read).mul_(_scale(n, len(rounds))))
                read = lows[n].flatten(0, 1)
            d_parameters.append(matmul(d_sums.t(), read).mul_(_scale(n, len(rounds))))
        return (None, None, d_inputs, d_h, d_c, None, d_weight, d_bias, *d_parameters)


def _split(parameters: Sequence[Tensor], num_rounds: int) -> List[Sequence[Tensor]]:
    """Bias and matrices of each round."""
    size = len(parameters) // max(1, num_rounds)
    return [parameters[n * size : (n + 1) * size] for n in range(num_rounds)]


def _values(pairs: Sequence[Tensor], operands: Tensor, width_in: int) -> List[List[Tensor]]:
    """Views of x before each round that gates it and after the last, then the same views of h."""
    ends = operands.tensor_split([width_in], dim=2)
    return [[*(pair.chunk(2, dim=2)[0] for pair in pairs[v::2]), ends[v]] for v in (0, 1)]


def _scale(n: int, num_rounds: int) -> float:
    """1 / 2^k, where k rounds still gate what round n reads: their factors 2 were multiplied in at the start.

    Powers of two cause no rounding.
    """
    return 0.5 ** ((num_rounds - n) // 2)


def _product(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """a b in ``out``."""
    return torch.mm(a, b, out=out) if onednn_kernel(a) is None else out.copy_(matmul(a, b))


def _accumulate_product(total: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """Add a b times ``scale`` to ``total``, which may have gaps."""
    if onednn_kernel(a) is None:
        total.addmm_(a, b, alpha=scale)
    else:
        total.add_(matmul(a, b), alpha=scale)
