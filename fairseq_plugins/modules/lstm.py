"""LSTM layers: plain, with DropConnect on the recurrent matrix, and with variational dropout.

Shapes: B batch rows, T time steps, C input width, of which C' columns are precomputed, D width.
"""

from dataclasses import dataclass, field
from typing import Callable, List, Optional, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, LayerState, RecurrentCell, Step
from fairseq_plugins.modules.layers import BroadcastDropout, DropoutModule, dropout_mask
from fairseq_plugins.ops.matmul import autocast_dtype, linear, matmul
from fairseq_plugins.ops.recurrence import StepProducts, lstm_cell, masked_lstm
from fairseq_plugins.options import check_dropout, choices

CLOSED_GATE = -1e4
"""Pre-activation at which a gate is zero in every precision."""

BiasVectors = choices(["one", "two"])


@dataclass
class BiasOptions(FairseqDataclass):
    """Flags of every LSTM."""

    rnn_biases: BiasVectors = field(
        default="two",
        metadata={"help": "number of bias vectors of a layer; two are added, as in torch (default: two)"},
    )


@dataclass
class WeightDropOptions(BiasOptions):
    """Flags of LSTMs with DropConnect on the recurrent matrix."""

    dropout_weight: float = field(
        default=0.0,
        metadata={
            "help": "rate at which elements of the recurrent matrices are dropped (DropConnect), 0 <= rate < 1 "
            "(default: 0.0)"
        },
    )


class LSTMLayer(RecurrentCell, nn.LSTM):
    """One LSTM layer: i, f, o = sigmoid(.), g = tanh(.), c = f c' + i g, h = o tanh(c).

    It has the parameters of :class:`torch.nn.LSTM` and runs over sequences by its kernel (oneDNN or cuDNN). With one
    bias vector the second is a buffer of zeros. The state is h and c, each (B, D).

    Args:
        input_size: C.
        hidden_size: D.
        options: flags.
    """

    Options = BiasOptions
    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, options: BiasOptions):
        super().__init__(input_size, hidden_size, batch_first=True)
        if options.rnn_biases == "one":
            del self.bias_hh_l0
            self.register_buffer("bias_hh_l0", torch.zeros(4 * hidden_size), persistent=False)

    def initial_state(self, x: Tensor) -> LayerState:
        return zero_state(x, self.hidden_size)

    def hidden_weight(self) -> Tensor:
        """The recurrent matrix for a window, (4 D, D)."""
        return self.weight_hh_l0

    def precompute(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """Part of the gates' pre-activations that the columns x (B, T, C') give with the biases, (T, B, 4 D), and the
        matrix that reads the other columns and h, (4 D, C - C' + D).
        """
        num_precomputed = x.size(-1)
        bias = self.bias_ih_l0 + self.bias_hh_l0
        if num_precomputed > 0:
            products = linear(x.transpose(0, 1), self.weight_ih_l0[:, :num_precomputed], bias)
        else:
            products = bias.expand(x.size(1), x.size(0), -1)
        return products, torch.cat([self.weight_ih_l0[:, num_precomputed:], self.hidden_weight()], dim=1)

    def gates(self, columns: Tensor) -> Callable[[int, Optional[Tensor], Tensor], Tensor]:
        """Pre-activations (B, 4, D) as a function of step, late columns and h, given the first columns (B, T, C')."""
        products, weight = self.precompute(columns)
        of_steps = StepProducts(products, weight.t())

        def gates(t: int, x: Optional[Tensor], h: Tensor) -> Tensor:
            operand = h if x is None else torch.cat([x, h], dim=1)
            return of_steps(t, operand).unflatten(1, (4, self.hidden_size))

        return gates

    def steps(self, x: Tensor, context: CellContext) -> Step:
        gates = self.gates(x)

        def step(t: int, state: LayerState, x: Optional[Tensor], _: Optional[Tensor]) -> Tuple[Tensor, LayerState]:
            h, c = update(gates(t, x, state["h"]), state["c"])
            return h, {"h": h, "c": c}

        return step

    # pyrefly: ignore[bad-override]
    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        if _is_search_step(x, context):
            return self._search_step(x.squeeze(1), state)
        input_weight = self.weight_ih_l0
        if context.leading_padding is not None:
            # An additional input, 1 at padding, closes the input gate there, so that c and h stay zero. More inputs
            # make the width a multiple of 16, without which kernels in 16 bits take three times as long.
            num_columns = 16 - input_weight.size(1) % 16
            closing = input_weight.new_zeros(4 * self.hidden_size, num_columns)
            closing[: self.hidden_size, 0] = CLOSED_GATE
            input_weight = torch.cat([input_weight, closing], dim=1)
            x = torch.cat([x, context.leading_padding.unsqueeze(-1).to(x).expand(-1, -1, num_columns)], dim=-1)
        weights = [input_weight, self.hidden_weight(), self.bias_ih_l0, self.bias_hh_l0]
        states = [state[name].contiguous().unsqueeze(0) for name in ("h", "c")]  # cuDNN needs contiguous states
        dtype = autocast_dtype(x)
        if x.is_cuda:
            weights = _share_storage(weights)
        elif dtype is not None:
            # torch chooses the kernel by the dtypes before autocast, and oneDNN's has no 16 bits without AVX-512
            x, *states = (tensor.to(dtype) for tensor in (x, *states))
            weights = [weight.to(dtype) for weight in weights]
        output, h, c = torch.lstm(
            x,
            states,
            weights,
            True,  # has_biases
            1,  # num_layers
            0.0,  # dropout between the layers of the kernel
            torch.is_grad_enabled(),  # cuDNN saves what a backward pass needs only in training mode
            False,  # bidirectional
            True,  # batch_first
        )
        return output, {"h": h.squeeze(0), "c": c.squeeze(0)}

    def _search_step(self, x: Tensor, state: LayerState) -> Tuple[Tensor, LayerState]:
        """One step of x, (B, C), without gradients."""
        gates = matmul(x, self.weight_ih_l0.t(), self.bias_ih_l0 + self.bias_hh_l0)
        gates += matmul(state["h"], self.hidden_weight().t())
        h, c = update(gates.unflatten(1, (4, self.hidden_size)), state["c"])
        return h.unsqueeze(1), {"h": h, "c": c}


def _is_search_step(x: Tensor, context: CellContext) -> bool:
    """Whether two products and the update are faster than torch's kernel.

    On a CPU that kernel takes longer for one step than for two. At 256 units the products are faster up to about 300
    rows, and a tenth slower beyond. On a GPU the kernel needs a copy of all weights.
    """
    is_plain = x.dtype == torch.float32 and autocast_dtype(x) is None and context.leading_padding is None
    return x.size(1) == 1 and not torch.is_grad_enabled() and is_plain


@RECURRENT_CELLS.register("lstm")
class WeightDropLSTM(DropoutModule, LSTMLayer):
    """LSTM with weight drop: DropConnect on its hidden-to-hidden matrix.

    Merity et al. 2018, section 2; Wan et al. 2013. Each window draws a mask that its time steps and rows share. The
    input-to-hidden matrix and the biases are never masked. Gradients reach the raw matrix.
    """

    Options = WeightDropOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: WeightDropOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.rate = check_dropout(options.dropout_weight, flag="--dropout-weight")

    def hidden_weight(self) -> Tensor:
        rate = self.current_rate
        if rate == 0:
            return self.weight_hh_l0
        mask = dropout_mask(self.weight_hh_l0, self.weight_hh_l0.shape, rate=rate)
        return self.weight_hh_l0 * mask


def zero_state(x: Tensor, width: int) -> LayerState:
    """Initial h and c, (B, width), for the rows of x (B, *)."""
    zeros = x.new_zeros(x.size(0), width)
    return {"h": zeros, "c": zeros}


def update(gates: Tensor, c: Tensor) -> Tuple[Tensor, Tensor]:
    """h and c, (B, D), after a step with pre-activations (B, 4, D) of input gate, forget gate, cell and output gate."""
    if gates.is_cuda and gates.dtype == c.dtype:
        return lstm_cell(gates.flatten(1), c)[:2]
    i, f, g, o = gates.unbind(1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _share_storage(weights: List[Tensor]) -> List[Tensor]:
    """Views of one buffer in the order that cuDNN expects. Otherwise cuDNN copies the weights and warns."""
    buffer = torch.cat([weight.reshape(-1) for weight in weights])
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights)]


# Dropout of the hidden state before recurrent matrices, with one mask for each window and row (Gal & Ghahramani 2016).


@dataclass
class RecurrentDropoutOptions(FairseqDataclass):
    """Flag of cells with this dropout."""

    dropout_recurrent: float = field(
        default=0.0,
        metadata={
            "help": "rate at which features of the last hidden state are dropped before the recurrent matrices, "
            "with one mask for all gates, micro-layers and steps of a window, 0 <= rate < 1 (default: 0.0)"
        },
    )


def recurrent_dropout(options: RecurrentDropoutOptions) -> BroadcastDropout:
    """Dropout of h before the recurrent matrices. Raises UserError on a rate outside [0, 1)."""
    return BroadcastDropout(options.dropout_recurrent, flag="--dropout-recurrent", shared_dims=())


@dataclass
class VariationalOptions(BiasOptions, RecurrentDropoutOptions):
    """Flags of ``--rnn-cell variational``."""


@RECURRENT_CELLS.register("variational")
class VariationalLSTM(LSTMLayer):
    """LSTM whose recurrent matrix reads m h' instead of h', with a mask m for each window and row.

    Gal & Ghahramani 2016, with the same mask for all gates. The language model draws the other masks of a variational
    LSTM, with ``--dropout-masks locked`` and ``--word-masks row``.
    """

    Options = VariationalOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: VariationalOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.recurrent_dropout = recurrent_dropout(options)

    def hidden_mask(self, x: Tensor) -> Optional[Tensor]:
        """New factors of a window's hidden states, (B, D), for the rows of x. None without dropout."""
        return self.recurrent_dropout.mask(x, (x.size(0), self.hidden_size))

    def steps(self, x: Tensor, context: CellContext) -> Step:
        step, mask = super().steps(x, context), self.hidden_mask(x)
        if mask is None:
            return step
        return lambda t, state, *late: step(t, {**state, "h": state["h"] * mask}, *late)

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        mask = self.hidden_mask(x)
        if mask is None:
            return super().forward(x, state, context)
        inputs = linear(x.transpose(0, 1), self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        if context.leading_padding is not None:
            # A closed input gate keeps c and h at zero.
            input_gate, others = inputs.tensor_split([self.hidden_size], dim=-1)
            closed = context.leading_padding.t().unsqueeze(-1)
            inputs = torch.cat([input_gate.masked_fill(closed, CLOSED_GATE), others], dim=-1)
        outputs, c = masked_lstm(inputs, self.weight_hh_l0, mask, state["h"], state["c"], graphs=context.graphs)
        return outputs.transpose(0, 1), {"h": outputs[-1].clone(), "c": c}
