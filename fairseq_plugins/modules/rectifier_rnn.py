"""Recurrent networks of rectifiers (Pachitariu & Sahani 2013).

Shapes: D width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_positive
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.simple_recurrent import SimpleRecurrentLayer, SimpleRecurrentOptions


@RECURRENT_CELLS.register("rectifier")
class RectifierRNN(SimpleRecurrentLayer):
    """x_t = max(0, W y_t + R x_{t-1}).

    Args, Raises: see :class:`SimpleRecurrentLayer`.
    """

    Options = SimpleRecurrentOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: SimpleRecurrentOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.recurrent = nn.Linear(hidden_size, hidden_size, bias=False)

    def activation(self, sums: Tensor) -> Tensor:
        return torch.relu(sums)


@dataclass
class SmoothRectifierOptions(SimpleRecurrentOptions):
    """Flags of ``--rnn-cell smooth-rectifier``."""

    rectifier_smoothing: float = field(
        default=1.0,
        metadata={
            "help": "the a of max(0, x - a tanh(x / a)), above 0; small ones come near to the plain rectifier "
            "(default: 1.0)"
        },
    )


@RECURRENT_CELLS.register("smooth-rectifier")
class SmoothRectifierRNN(RectifierRNN):
    """x_t = f(W y_t + R x_{t-1}) with f(z) = max(0, z - a tanh(z / a)), whose derivative has no jump.

    Raises:
        ValueError: as :class:`SimpleRecurrentLayer`, or if a is not above zero.
    """

    Options = SmoothRectifierOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: SmoothRectifierOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.smoothing = check_positive(options.rectifier_smoothing, flag="--rectifier-smoothing")
        self.save_setting("smoothing_text", flag="--rectifier-smoothing", value=f"{self.smoothing:g}")

    def activation(self, sums: Tensor) -> Tensor:
        return torch.relu(sums - self.smoothing * torch.tanh(sums / self.smoothing))
