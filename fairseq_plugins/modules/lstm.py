"""LSTM layer with DropConnect on its recurrent matrix."""

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.modules.recurrent_stack import LayerState, register_cell
from fairseq_plugins.options import check_dropout


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
        x: (B, T, C); state: (h, c), each (B, D), or None for zeros;
        output: (B, T, D) and the new state.
    """

    def __init__(self, input_size: int, hidden_size: int, *, weight_dropout: float = 0.0):
        super().__init__(input_size, hidden_size, batch_first=True)
        self.weight_dropout = check_dropout(weight_dropout, flag="--dropout-weight")

    def initial_state(self, x: Tensor) -> LayerState:
        """The zero state for the rows of ``x``."""
        zeros = x.new_zeros(x.size(0), self.hidden_size)
        return zeros, zeros

    def forward(self, x: Tensor, state: Optional[LayerState] = None) -> Tuple[Tensor, LayerState]:
        h, c = self.initial_state(x) if state is None else state
        hidden_weight = F.dropout(self.weight_hh_l0, self.weight_dropout, self.training)
        weights = [self.weight_ih_l0, hidden_weight, self.bias_ih_l0, self.bias_hh_l0]
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


def _share_storage(weights: List[Tensor]) -> List[Tensor]:
    """Views of one buffer in the order that cuDNN expects; spares its copy and its warning."""
    buffer = torch.cat([weight.reshape(-1) for weight in weights])
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights)]
