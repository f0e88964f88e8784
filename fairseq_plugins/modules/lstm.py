"""LSTM layer with DropConnect on its recurrent matrix."""

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_dropout
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, LayerState, RecurrentCell

CLOSED_GATE = -1e4
"""Pre-activation at which a gate is zero in every precision."""


@RECURRENT_CELLS.register("lstm")
class WeightDropLSTM(RecurrentCell, nn.LSTM):
    """One LSTM layer whose hidden-to-hidden matrix loses random elements while training.

    Weight drop (Merity et al. 2018, section 2; DropConnect of Wan et al. 2013): a fresh mask a call,
    that is a window, shared by its time steps and rows; the input-to-hidden matrix and the biases are
    never masked. The masked matrix is handed to the library's LSTM kernel (oneDNN or cuDNN), so the
    parameters stay those of :class:`torch.nn.LSTM` and gradients reach the raw matrix.

    Args:
        input_size: width C of the input.
        hidden_size: width D of the output.
        weight_dropout: probability to drop an element, 0 <= rate < 1.

    Shape:
        x: (B, T, C); state: (h, c), each (B, D), or None for zeros; leading_padding: (B, T) or None;
        output: (B, T, D) and the new state.
    """

    def __init__(self, input_size: int, hidden_size: int, *, weight_dropout: float = 0.0):
        super().__init__(input_size, hidden_size, batch_first=True)
        self.weight_dropout = check_dropout(weight_dropout, flag="--dropout-weight")

    def forward(
        self,
        x: Tensor,
        state: Optional[LayerState] = None,
        *,
        stack_input: Optional[Tensor] = None,
        leading_padding: Optional[Tensor] = None,
    ) -> Tuple[Tensor, LayerState]:
        h, c = self.initial_state(x) if state is None else state
        input_weight = self.weight_ih_l0
        if leading_padding is not None:
            # one more input, which is 1 at padding, closes the input gate there: c and h stay zero
            closing = input_weight.new_zeros(4 * self.hidden_size, 1)
            closing[: self.hidden_size] = CLOSED_GATE
            input_weight = torch.cat([input_weight, closing], dim=1)
            x = torch.cat([x, leading_padding.unsqueeze(-1).to(x)], dim=-1)
        weights = [input_weight, self._hidden_weight(), self.bias_ih_l0, self.bias_hh_l0]
        output, h, c = torch.lstm(
            x,
            [h.contiguous().unsqueeze(0), c.contiguous().unsqueeze(0)],  # cuDNN takes no other
            _share_storage(weights) if x.is_cuda else weights,
            True,  # has_biases
            1,  # num_layers
            0.0,  # dropout between the layers of the kernel
            self.training,
            False,  # bidirectional
            True,  # batch_first
        )
        return output, (h.squeeze(0), c.squeeze(0))

    def _hidden_weight(self) -> Tensor:
        return F.dropout(self.weight_hh_l0, self.weight_dropout, self.training)

    def steps(self, known: Optional[Tensor] = None, *, stack_known: Optional[Tensor] = None) -> "LSTMSteps":
        num_known = 0 if known is None else known.size(-1)
        bias = self.bias_ih_l0 + self.bias_hh_l0
        if known is not None:
            known = F.linear(known.transpose(0, 1), self.weight_ih_l0[:, :num_known], bias)
        weight = torch.cat([self.weight_ih_l0[:, num_known:], self._hidden_weight()], dim=1)
        return LSTMSteps(known=known, weight=weight, bias=bias)


class LSTMSteps:
    """The steps of an LSTM layer over one sequence; what does not depend on the step is computed before.

    Args:
        known: the known input's share of the gates with the biases, (T, B, 4 D), or None.
        weight: columns of the input that is known later and of the hidden state, (4 D, C - C' + D).
        bias: sum of both biases, (4 D).
    """

    def __init__(self, *, known: Optional[Tensor], weight: Tensor, bias: Tensor):
        self.known = None if known is None else known.unbind(0)
        self.weight = weight.t()
        self.bias = bias
        self.hidden_size = len(bias) // 4

    def gates(self, t: int, late: Tensor, h: Tensor) -> Tensor:
        """Pre-activations of step t, (B, 4, D)."""
        known = self.bias if self.known is None else self.known[t]
        return torch.addmm(known, torch.cat([late, h], dim=1), self.weight).unflatten(1, (4, self.hidden_size))

    def __call__(self, t: int, late: Tensor, state: LayerState, *, stack_late: Optional[Tensor] = None) -> LayerState:
        h, c = state
        return update(self.gates(t, late, h), c)


def update(gates: Tensor, c: Tensor) -> LayerState:
    """h and c, (B, D), after a step with pre-activations (B, 4, D) of input, forget, cell and output gate."""
    i, f, g, o = gates.unbind(1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _share_storage(weights: List[Tensor]) -> List[Tensor]:
    """Views of one buffer in the order that cuDNN expects; spares its copy and its warning."""
    buffer = torch.cat([weight.reshape(-1) for weight in weights])
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights)]
