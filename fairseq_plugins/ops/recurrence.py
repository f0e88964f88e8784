"""Recurrences over the steps of a sequence, with written-out backward passes.

Autograd would form the gradient of a recurrent matrix at every step and add the steps up. Here the gradients of the
results of all steps are kept side by side, and the gradient of the matrix is one product of them with all operands.

Shapes: T time steps, B batch rows, D width, L micro-layers of a highway network, K features of an operand.
"""

from functools import lru_cache
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.cuda_graphs import LoopGraphs, run_loop
from fairseq_plugins.ops.matmul import accumulation_dtype, backward_keeps_graph, is_recorded, matmul, product_dtype


def masked_lstm(
    inputs: Tensor, weight: Tensor, mask: Tensor, h: Tensor, c: Tensor, *, graphs: Optional[LoopGraphs] = None
) -> Tuple[Tensor, Tensor]:
    """An LSTM whose hidden state h is masked before the recurrent matrix (variational dropout).

    i, f, o = sigmoid(.) and g = tanh(.) of inputs_t + U (m h'); c = f c' + i g, h = o tanh(c).

    Where nothing learns, only h is kept of each step.

    Args:
        inputs: precomputed part of the gates that the input and the biases give, (T, B, 4 D), in the order i, f, g, o.
        weight: U, (4 D, D).
        mask: m, (B, D), without gradient.
        h, c: state before the first step, (B, D).
        graphs: of the loop, or None.

    Returns:
        h of all steps, (T, B, D), and c after the last, (B, D), differentiable once.
    """
    return run_loop(graphs, _MaskedLSTM, inputs, weight, mask, h, c, like=inputs)


class _MaskedLSTM(torch.autograd.Function):
    """On a GPU three launches a step, and four backwards."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, learns: bool, inputs: Tensor, weight: Tensor, mask: Tensor, h: Tensor, c: Tensor
    ) -> Tuple[Tensor, Tensor]:
        outputs: List[Tensor] = []
        gates: List[Tensor] = []
        cells = [c.contiguous()]
        masked, results = (h.new_empty(num, *h.shape) for num in ((len(inputs), 0) if learns else (1, len(inputs))))
        transposed = weight.t()
        for t, step_inputs in enumerate(inputs.unbind(0)):
            operand = torch.mul(h, mask, out=masked[t if learns else 0])
            h, c, step_gates = lstm_cell(step_inputs.contiguous(), cells[-1], product=matmul(operand, transposed))
            if learns:
                outputs.append(h)
                cells.append(c)
                gates.append(step_gates)
            else:
                results[t], cells[0] = h, c
        ctx.save_for_backward(weight, mask, masked, *cells, *gates)
        return torch.stack(outputs) if learns else results, c.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor, d_c: Tensor) -> Tuple[Optional[Tensor], ...]:
        weight, mask, masked, *rest = ctx.saved_tensors
        num_steps = len(d_outputs)
        cells, gates = rest[: num_steps + 1], rest[num_steps + 1 :]
        d_gates = d_outputs.new_empty(num_steps, *gates[0].shape)
        d_h = torch.zeros_like(mask)
        for t in reversed(range(num_steps)):
            step, d_c = lstm_cell_backward(d_h + d_outputs[t], d_c, cells[t], cells[t + 1], gates[t])
            d_gates[t] = step
            d_h = matmul(step, weight).mul_(mask)
        d_weight = matmul(d_gates.flatten(0, 1).t(), masked.flatten(0, 1)) if ctx.needs_input_grad[2] else None
        return None, d_gates, d_weight, None, d_h, d_c


def lstm_cell(sums: Tensor, c: Tensor, *, product: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Tensor]:
    """One update of an LSTM, on a GPU by the kernel of :class:`torch.nn.LSTMCell`.

    Args:
        sums: pre-activations of i, f, g, o, (B, 4 D).
        c: (B, D).
        product: the rest of the pre-activations, or None. A CPU overwrites it, or the sums if it is None.

    Returns:
        h and c, (B, D), and the gates, for :func:`lstm_cell_backward`.
    """
    if sums.is_cuda:
        rest = _zero(sums.dtype, sums.device).expand_as(sums) if product is None else product
        return torch.ops.aten._thnn_fused_lstm_cell(sums, rest, c)
    sums = sums if product is None else product.add_(sums)
    i, f, g, o = sums.chunk(4, dim=1)
    sums[:, : 2 * c.size(1)].sigmoid_()  # i and f lie side by side
    g.tanh_()
    o.sigmoid_()
    c = torch.mul(f, c).addcmul_(i, g)
    return torch.tanh(c).mul_(o), c, sums


def lstm_cell_backward(
    d_h: Tensor, d_c: Tensor, former: Tensor, c: Tensor, gates: Tensor, *, out: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Gradients with respect to the sums, (B, 4 D), and the ``former`` c, (B, D), of :func:`lstm_cell`.

    On a CPU the first is written to ``out``.
    """
    if gates.is_cuda:
        d_sums, d_former, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(d_h, d_c, former, c, gates, False)
        return d_sums, d_former
    i, f, g, o = gates.chunk(4, dim=1)
    d_sums = torch.empty_like(gates) if out is None else out
    d_i, d_f, d_g, d_o = d_sums.chunk(4, dim=1)
    squashed = torch.tanh(c)
    _sigmoid_backward(d_h * squashed, o, grad_input=d_o)
    d_c = d_c + torch.ops.aten.tanh_backward(d_h * o, squashed)
    torch.mul(d_c, g, out=d_i)
    torch.mul(d_c, former, out=d_f)
    input_and_forget = slice(2 * c.size(1))
    d_both = d_sums[:, input_and_forget]
    _sigmoid_backward(d_both, gates[:, input_and_forget], grad_input=d_both)
    tanh_backward(d_c * i, g, grad_input=d_g)
    return d_sums, d_c * f


@lru_cache(maxsize=None)
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zero that is made once, because making it is a launch."""
    return torch.zeros(1, dtype=dtype, device=device)


def has_fused_gru(x: Tensor) -> bool:
    """Whether torch has a kernel of a whole GRU cell for the device of ``x``."""
    return x.is_cuda


def recurrent_highway(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    s: Tensor,
    *,
    mask: Optional[Tensor] = None,
    keep: Optional[Tensor] = None,
    graphs: Optional[LoopGraphs] = None,
) -> Tensor:
    """A recurrent highway network: s <- (h - s) t + s for each of the L micro-layers of a step.

    h = tanh(R_H (m s) + b_H), t = sigmoid(R_T (m s) + b_T).

    The first micro-layer adds the inputs to both sums. R holds the rows of R_H, then those of R_T, and b likewise.
    Where nothing learns, only the result of each step is kept.

    Args:
        inputs: precomputed part of the sums of the first micro-layer, (T, B, 2 D): for h, then for t.
        weights: R of each micro-layer, (2 D, D).
        biases: b of each, (2 D).
        s: state before the first step, (B, D).
        mask: m, (B, D), without gradient; by default ones.
        keep: factors of the state after each step, (T, B, 1), without gradient; by default ones.
        graphs: of the loop, or None.

    Returns:
        s after all steps, (T, B, D), differentiable once.
    """
    function, factors = _RecurrentHighway, s.new_ones(1, 1) if mask is None else mask
    if has_fused_gru(inputs):
        function, inputs = _FusedHighway, _gru_rows(inputs, dim=2)
        weights = _gru_rows(torch.stack([*weights]), dim=1).unbind(0)
        biases = _gru_rows(torch.stack([*biases]), dim=1, reset=_OPEN).unbind(0)
    return run_loop(graphs, function, inputs, s, factors, keep, *weights, *biases, like=inputs)


class _RecurrentHighway(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, learns: bool, inputs: Tensor, s: Tensor, mask: Tensor, keep: Optional[Tensor], *parameters: Tensor
    ) -> Tensor:
        num_steps, depth, (num_rows, width) = inputs.size(0), len(parameters) // 2, s.shape
        weights, biases = parameters[:depth], parameters[depth:]
        transposed = [weight.t() for weight in weights]
        outputs = s.new_empty(num_steps, num_rows, width)
        # One tensor for each micro-layer instead of one for all: the C library reuses the memory of small tensors.
        size = (num_steps if learns else 1, num_rows, width)
        candidates, gates, states = ([s.new_empty(size) for _ in range(depth)] for _ in range(3))
        states[-1] = outputs  # the state after the last micro-layer is the result of the step
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
        # the state that each micro-layer reads: the last step's for the first, the micro-layer below's for the others
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
                tanh_backward(d_candidate, candidate, grad_input=d_sum[:, :width])
                _sigmoid_backward((candidate - s).mul_(d_s), gate, grad_input=d_sum[:, width:])
                # s reaches the result by the carry 1 - t and by both sums
                d_s = torch.sub(d_s, d_candidate).addcmul_(matmul(d_sum, weight), mask)
        d_weights = [
            matmul(d.flatten(0, 1).t(), (s * mask).flatten(0, 1)) if wanted else None
            for wanted, d, s in zip(ctx.needs_input_grad[-2 * depth :], d_sums, before)
        ]
        return None, d_sums[0], d_s, None, None, *d_weights, *(d.sum(dim=(0, 1)) for d in d_sums)


class _FusedHighway(torch.autograd.Function):
    """:class:`_RecurrentHighway` by the kernels of :class:`torch.nn.GRUCell`: three launches a micro-layer either way.

    A GRU takes s <- z s + (1 - z) tanh(n + r n'), which is a micro-layer with z = sigmoid(-t) and r = 1. Inputs,
    matrices and biases have rows for r, -t and h.
    """

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, learns: bool, inputs: Tensor, s: Tensor, mask: Tensor, keep: Optional[Tensor], *parameters: Tensor
    ) -> Tensor:
        depth = len(parameters) // 2
        weights, biases = parameters[:depth], parameters[depth:]
        nothing = _zero(s.dtype, s.device).expand(len(s), 3 * s.size(1))
        outputs: List[Tensor] = []
        saved: List[Tensor] = []
        for t, step_inputs in enumerate(inputs.unbind(0)):
            for layer, (weight, bias) in enumerate(zip(weights, biases)):
                sums = torch.addmm(bias, s * mask, weight.t())
                s, workspace = fused_gru(sums, nothing if layer else step_inputs, s)
                if learns:
                    saved.append(workspace)
            if keep is not None:
                s = s * keep[t]
            outputs.append(s)
        ctx.save_for_backward(mask, keep, *weights, *saved)
        return torch.stack(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_outputs: Tensor) -> Tuple[Optional[Tensor], ...]:
        mask, keep, *saved = ctx.saved_tensors
        num_steps, depth = len(d_outputs), (len(ctx.needs_input_grad) - 5) // 2
        weights, workspaces = saved[:depth], saved[depth:]
        d_s = torch.zeros_like(d_outputs[0])
        d_sums: List[Tensor] = []
        for t in reversed(range(num_steps)):
            d_s = d_s + d_outputs[t]
            if keep is not None:
                d_s = d_s * keep[t]
            for layer in reversed(range(depth)):
                d_sum, d_carried = fused_gru_backward(d_s, workspaces[t * depth + layer])
                d_sums.append(d_sum)
                d_s = torch.addcmul(d_carried, d_sum @ weights[layer], mask)
        of_layers = [torch.stack(d_sums[depth - 1 - layer :: depth][::-1]) for layer in range(depth)]
        d_weights = []
        for layer, d_sum in enumerate(of_layers):
            operands = torch.stack([x.chunk(5, dim=1)[3] for x in workspaces[layer::depth]]).mul_(mask)
            d_weights.append(d_sum.flatten(0, 1).t() @ operands.flatten(0, 1))
        return None, of_layers[0], d_s, None, None, *d_weights, *(d_sum.sum(dim=(0, 1)) for d_sum in of_layers)


_OPEN = 40.0
"""Pre-activation at which a gate is 1 in every precision."""


def _gru_rows(x: Tensor, *, dim: int, reset: float = 0.0) -> Tensor:
    """Rows [h; t] of candidates and gates along ``dim`` in the order of a GRU, [r; z; n] = [``reset``; -t; h]."""
    of_h, of_t = x.chunk(2, dim=dim)
    return torch.cat([torch.full_like(of_h, reset), -of_t, of_h], dim=dim)


def fused_gru(gates: Tensor, rest: Tensor, s: Tensor) -> Tuple[Tensor, Tensor]:
    """A step of a GRU by the kernel of :class:`torch.nn.GRUCell`.

    Args:
        gates: pre-activations of r, z and the candidate, (B, 3 D).
        rest: a second part that is added to them, (B, 3 D); r multiplies the candidate's.
        s: before the step, (B, D).

    Returns:
        s after it, and what the backward pass needs, (B, 5 D): r, z, the candidate, s before, the candidate's rest.
    """
    return torch.ops.aten._thnn_fused_gru_cell(gates, rest, s)


def fused_gru_backward(d_s: Tensor, workspace: Tensor) -> Tuple[Tensor, Tensor]:
    """Gradients of the first pre-activations, (B, 3 D), and of s before the step, (B, D), of :func:`fused_gru`."""
    d_gates, _, d_before, *_ = torch.ops.aten._thnn_fused_gru_cell_backward(d_s, workspace, False)
    return d_gates, d_before


tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


def linear_scan(inputs: Tensor, factors: Tensor, start: Tensor) -> Tensor:
    """A linear recurrence with one factor for each feature: x_t = u_t + r * x_{t-1}.

    A step is one small kernel on a CPU. On a GPU a kernel takes longer to start than such a step takes, so log2 T
    passes over the whole sequence replace the T steps. Sums of 16-bit tensors are formed in float32.

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
    """The recurrence in place of its inputs x, (T, B, D), by the method that is faster on their device."""
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


class StepProducts:
    """precomputed_t + x_t A for the steps t = 0 .. T-1 of a sequence, where x_t depends on the step before.

    It is for cells whose caller takes the steps one by one. The gradient of the precomputed part holds the gradients of
    all results. One product of it with all operands gives the gradient of A. Results are then differentiable once. On a
    GPU, Python takes longer than small kernels, so gradients are left to autograd, except in 16 bits, where autograd's
    sums would lose digits.

    Args:
        precomputed: the part that does not depend on the step before, (T, B, D).
        matrix: A, (K, D).
    """

    def __init__(self, precomputed: Tensor, matrix: Tensor):
        dtype = product_dtype(matrix)
        precomputed, matrix = precomputed.to(dtype), matrix.to(dtype)
        self._gathers = gathers_gradients(matrix) and not torch.compiler.is_compiling()  # torch.export
        self._operands: List[Optional[Tensor]] = [None] * len(precomputed)
        self._learns = is_recorded([matrix])
        if self._gathers:
            # Only _GatherGradients gives A a gradient. Its backward pass runs after those of all steps.
            precomputed, matrix = _GatherGradients.apply(precomputed, matrix, self._operands), matrix.detach()
        self._precomputed, self._matrix = precomputed.unbind(0), matrix

    def __call__(self, t: int, x: Tensor) -> Tensor:
        """Result (B, D) of step t for x (B, K). Each step can be taken once."""
        x = x.to(self._matrix.dtype)
        with torch.autocast(x.device.type, enabled=False):
            if not self._gathers:
                return torch.addmm(self._precomputed[t], x, self._matrix)
            if self._learns:
                assert self._operands[t] is None
                self._operands[t] = x.detach()
            return _AddProduct.apply(self._precomputed[t], x, self._matrix)


def gathers_gradients(matrix: Tensor) -> bool:
    """Whether the gradient of a matrix is formed after all steps, by one product."""
    return not matrix.is_cuda or matrix.dtype in (torch.bfloat16, torch.float16)


class _GatherGradients(torch.autograd.Function):
    """The precomputed part unchanged. Its backward pass forms the gradient of the matrix from those of all results."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, precomputed: Tensor, matrix: Tensor, operands: List[Optional[Tensor]]) -> Tensor:
        ctx.operands = operands
        ctx.matrix_shape = matrix.shape
        return precomputed.view_as(precomputed)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_results: Tensor) -> Tuple[Tensor, Optional[Tensor], None]:
        if not ctx.needs_input_grad[1]:
            return d_results, None, None
        if not ctx.operands:
            raise RuntimeError("the operands are gone after a backward pass: give it retain_graph=True")
        # steps that the caller did not take have no operand
        taken = [t for t, operand in enumerate(ctx.operands) if operand is not None]
        operands = [ctx.operands[t] for t in taken]
        if not backward_keeps_graph():
            ctx.operands.clear()
        if not taken:
            return d_results, d_results.new_zeros(ctx.matrix_shape), None
        d_taken = d_results if len(taken) == len(d_results) else d_results[taken]
        return d_results, _matrix_gradient(torch.stack(operands), d_taken), None


def _matrix_gradient(operands: Tensor, d_results: Tensor) -> Tensor:
    """Sum over the steps of x_t' dy_t, (K, D), for operands x (T, B, K) and gradients dy (T, B, D)."""
    return matmul(d_results.flatten(0, 1).t(), operands.flatten(0, 1)).t()


class _AddProduct(torch.autograd.Function):
    """precomputed + x A without a gradient of A, which :class:`_GatherGradients` forms."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, precomputed: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return matmul(x, matrix).add_(precomputed)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, d_result: Tensor) -> Tuple[Tensor, Optional[Tensor], None]:
        (matrix,) = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return d_result, None, None
        return d_result, matmul(d_result, matrix.t()), None
