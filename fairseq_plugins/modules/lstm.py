"""LSTM layer with DropConnect on its recurrent matrix."""

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.modules.recurrent_stack import LayerState, register_cell
from fairseq_plugins.options import check_dropout

CLOSED_GATE = -1e4
"""Pre-activation at which a gate is zero in every precision."""


@register_cell("lstm")
class WeightDropLSTM(nn.LSTM):
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

    def initial_state(self, x: Tensor) -> LayerState:
        """The zero state for the rows of ``x``."""
        zeros = x.new_zeros(x.size(0), self.hidden_size)
        return zeros, zeros

    def forward(
        self, x: Tensor, state: Optional[LayerState] = None, *, leading_padding: Optional[Tensor] = None
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
            [h.unsqueeze(0), c.unsqueeze(0)],
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

    def steps(self, known: Optional[Tensor] = None) -> "LSTMSteps":
        """Run the layer step by step where a part of its input is known only then.

        Args:
            known: the first columns of the input at all steps, (B, T, C'), or None where none is known.
        """
        num_known = 0 if known is None else known.size(-1)
        bias = self.bias_ih_l0 + self.bias_hh_l0
        gates = None if known is None else F.linear(known.transpose(0, 1), self.weight_ih_l0[:, :num_known], bias)
        weight = torch.cat([self.weight_ih_l0[:, num_known:], self._hidden_weight()], dim=1)
        return LSTMSteps(gates=gates, weight=weight, bias=bias)


class LSTMSteps:
    """The steps of an LSTM layer over one sequence; what does not depend on the step is computed before.

    Args:
        gates: the known input's share of the gates with the biases, (T, B, 4 D), or None.
        weight: columns of the input that is known later and of the hidden state, (4 D, C - C' + D).
        bias: sum of both biases, (4 D).
    """

    def __init__(self, *, gates: Optional[Tensor], weight: Tensor, bias: Tensor):
        self.gates = None if gates is None else gates.unbind(0)
        self.weight = weight.t()
        self.bias = bias

    def __call__(self, t: int, late: Tensor, state: LayerState) -> LayerState:
        """State after step t, given the rest of the input, ``late`` (B, C - C'); its h is the output."""
        h, c = state
        known = self.bias if self.gates is None else self.gates[t]
        i, f, g, o = torch.addmm(known, torch.cat([late, h], dim=1), self.weight).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def _share_storage(weights: List[Tensor]) -> List[Tensor]:
    """Views of one buffer in the order that cuDNN expects; spares its copy and its warning."""
    buffer = torch.cat([weight.reshape(-1) for weight in weights])
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights)]
