"""LSTM with one mask of its hidden states a window (Gal & Ghahramani 2016).

Shapes: B batch rows, T time steps, C input width, D width.
"""

from dataclasses import dataclass
from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.modules.lstm import CLOSED_GATE, BiasOptions, LSTMLayer, PreparedLSTM
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, CellContext, Late, LayerState
from fairseq_plugins.modules.recurrent_dropout import RecurrentDropout, RecurrentDropoutOptions
from fairseq_plugins.ops.linear import linear
from fairseq_plugins.ops.masked_lstm import masked_lstm


@dataclass
class VariationalOptions(BiasOptions, RecurrentDropoutOptions):
    """Flags of ``--rnn-cell variational``."""


@RECURRENT_CELLS.register("variational")
class VariationalLSTM(LSTMLayer):
    """LSTM whose recurrent matrix reads m h' in place of h', with a mask m drawn once a window and row.

    Gal & Ghahramani 2016, with the mask tied between the gates. The other masks of a variational LSTM are those of the
    language model: ``--dropout-masks locked`` and ``--word-masks row``.
    """

    Options = VariationalOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: VariationalOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.recurrent_dropout = RecurrentDropout(options)

    def hidden_mask(self, x: Tensor) -> Optional[Tensor]:
        """Fresh factors of a window's hidden states, (B, D), for the rows of x; None where nothing is dropped."""
        return self.recurrent_dropout.draw(x, self.hidden_size)

    def prepare(self, x: Tensor, context: CellContext) -> PreparedLSTM:
        return super().prepare(x, context)._replace(mask=self.hidden_mask(x))

    def step(self, prepared: PreparedLSTM, t: int, late: Late, state: LayerState) -> Tuple[Tensor, LayerState]:
        h = state["h"] if prepared.mask is None else state["h"] * prepared.mask
        return super().step(prepared, t, late, {**state, "h": h})

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        mask = self.hidden_mask(x)
        if mask is None:
            return super().forward(x, state, context)
        steps_first = x.transpose(0, 1)
        inputs = linear(steps_first.flatten(0, 1), self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        inputs = inputs.unflatten(0, steps_first.shape[:2])
        if context.leading_padding is not None:
            # with the input gate closed, c and h stay zero
            input_gate, others = inputs.tensor_split([self.hidden_size], dim=-1)
            closed = context.leading_padding.t().unsqueeze(-1)
            inputs = torch.cat([input_gate.masked_fill(closed, CLOSED_GATE), others], dim=-1)
        outputs, c = masked_lstm(inputs, self.weight_hh_l0, mask, state["h"], state["c"])
        return outputs.transpose(0, 1), {"h": outputs[-1].clone(), "c": c}
