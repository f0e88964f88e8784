"""LSTM with one mask of its hidden states a window (Gal & Ghahramani 2016).

Shapes: B batch rows, T time steps, C input width, D width.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Tuple

from torch import Tensor

from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.lstm import BiasOptions, LSTMLayer, PreparedLSTM
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, CellContext, Late, LayerState, RecurrentCell


@dataclass
class VariationalOptions(BiasOptions):
    """Flags of ``--rnn-cell variational``."""

    dropout_recurrent: float = field(
        default=0.0,
        metadata={
            "help": "rate at which features of the last hidden state are dropped before the recurrent matrix, the same "
            "ones for all gates and steps of a window, 0 <= rate < 1 (default: 0.0)"
        },
    )


class PreparedVariationalLSTM(NamedTuple):
    """What all steps read: that of an LSTM, and factors of the hidden state, (B, D), or None."""

    lstm: PreparedLSTM
    mask: Optional[Tensor]


@RECURRENT_CELLS.register("variational")
class VariationalLSTM(LSTMLayer):
    """LSTM whose recurrent matrix reads m h' in place of h', with a mask m drawn once a window and row.

    Gal & Ghahramani 2016, with the mask tied between the gates. The other masks of a variational LSTM are those of the
    language model: ``--dropout-masks locked`` and ``--word-masks row``.
    """

    Options = VariationalOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: VariationalOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.recurrent_dropout = BroadcastDropout(options.dropout_recurrent, flag="--dropout-recurrent", shared_dims=())

    def prepare(self, x: Tensor, context: CellContext) -> PreparedVariationalLSTM:
        mask = self.recurrent_dropout.mask(x, (x.size(0), self.hidden_size))
        return PreparedVariationalLSTM(super().prepare(x, context), mask)

    def step(
        self, prepared: PreparedVariationalLSTM, t: int, late: Late, state: LayerState
    ) -> Tuple[Tensor, LayerState]:
        h = state["h"] if prepared.mask is None else state["h"] * prepared.mask
        return super().step(prepared.lstm, t, late, {**state, "h": h})

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        if not self.training or self.recurrent_dropout.rate == 0:
            return super().forward(x, state, context)
        return RecurrentCell.forward(self, x, state, context)
