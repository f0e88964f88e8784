"""Dropout of what recurrent matrices read of the step before, with one mask a window and row.

Shapes: B batch rows, D width.
"""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_plugins.modules.dropout import BroadcastDropout


@dataclass
class RecurrentDropoutOptions(FairseqDataclass):
    """The flag of cells that have this dropout."""

    dropout_recurrent: float = field(
        default=0.0,
        metadata={
            "help": "rate at which features of the last hidden state are dropped before the recurrent matrices, the "
            "same ones for all gates, micro-layers and steps of a window, 0 <= rate < 1 (default: 0.0)"
        },
    )


class RecurrentDropout(BroadcastDropout):
    """Draws the mask of a window (Gal & Ghahramani 2016).

    Args:
        options: with the rate.

    Raises:
        ValueError: on a rate outside [0, 1).
    """

    def __init__(self, options: RecurrentDropoutOptions):
        super().__init__(options.dropout_recurrent, flag="--dropout-recurrent", shared_dims=())

    def draw(self, x: Tensor, width: int) -> Optional[Tensor]:
        """Fresh factors, (B, D), for the rows of x (B, *) and D = ``width``; None where nothing is dropped."""
        return self.mask(x, (x.size(0), width))
