"""Linear recurrent network whose units have a memory of their own: the FPNN of Pachitariu & Sahani 2013.

Shapes: B batch rows, T time steps, C input width, D width.
"""

import math
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.flags.choices import choices
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, CellContext, LayerState
from fairseq_plugins.modules.simple_recurrent import SimpleRecurrentLayer, SimpleRecurrentOptions
from fairseq_plugins.ops.linear_scan import linear_scan
from fairseq_plugins.ops.precision import accumulation_dtype

TRANSITIONS = ("diagonal", "full")
"""Shapes of R."""

Transition = choices(TRANSITIONS)


@dataclass
class DiagonalOptions(SimpleRecurrentOptions):
    """Flags of ``--rnn-cell diagonal``."""

    transition: Transition = field(
        default="diagonal",
        metadata={
            "help": "shape of the recurrent matrix; diagonal: each unit reads itself alone, by a number between -1 and "
            "1 (default: diagonal)"
        },
    )
    longest_timescale: float = field(
        default=20.0,
        metadata={
            "help": "where training starts: the time in tokens in which the slowest unit of a diagonal network forgets "
            "all but 1/e; those of the others are spread evenly, by their logarithms, down to a quarter of a token "
            "(default: 20.0)"
        },
    )


SHORTEST_TIMESCALE, LONGEST_TIMESCALE = 0.25, 100_000
"""In tokens; a unit that forgot more slowly would be 1 in 32 bits, and not learn."""


@RECURRENT_CELLS.register("diagonal")
class DiagonalRNN(SimpleRecurrentLayer):
    """x_t = W y_t + r * x_{t-1}, a linear network (Pachitariu & Sahani 2013, FPNN).

    r = tanh(s_0 + s) with a trained s, which keeps it within -1 and 1; s_0 is where the timescales -1 / log r start. r
    is formed in float32, for in 16 bits it would be 1 where a unit forgets slowly. A window is one scan. With
    ``--transition full`` a matrix takes the place of r, and nothing bounds it.

    Raises:
        ValueError: as :class:`SimpleRecurrentLayer`, or if the longest timescale is not above the shortest.
    """

    Options = DiagonalOptions

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        if getattr(args, "transition", "diagonal") == "full":
            return {"longest_timescale": "leave out --transition full"}
        if getattr(args, "word_skip", None) is None:
            return {"recurrent_scale": "give it a recurrent matrix by --transition full or --word-skip"}
        return {}

    def __init__(self, input_size: int, hidden_size: int, *, options: DiagonalOptions):
        super().__init__(input_size, hidden_size, options=options)
        if not SHORTEST_TIMESCALE < options.longest_timescale <= LONGEST_TIMESCALE:
            raise ValueError(
                f"--longest-timescale {options.longest_timescale}: give a number of tokens above {SHORTEST_TIMESCALE}, "
                f"up to {LONGEST_TIMESCALE:,}"
            )
        self.recurrent = nn.Linear(hidden_size, hidden_size, bias=False) if options.transition == "full" else None
        self.longest_timescale = options.longest_timescale
        self._start: Optional[Tensor] = None  # no buffer, whose precision follows the weights
        if self.recurrent is None:
            self.connection_bias = nn.Parameter(torch.zeros(hidden_size))
            self.save_setting("timescale_text", flag="--longest-timescale", value=f"{options.longest_timescale:g}")

    def activation(self, sums: Tensor) -> Tensor:
        return sums

    @property
    def start(self) -> Tensor:
        """s_0, (D) in float32, whatever the precision of the weights."""
        device = self.connection_bias.device
        if self._start is None or self._start.device != device:
            shortest = SHORTEST_TIMESCALE if self.hidden_size > 1 else self.longest_timescale
            timescales = torch.linspace(math.log(shortest), math.log(self.longest_timescale), self.hidden_size).exp()
            self._start = torch.atanh(torch.exp(-1 / timescales)).to(device)
        return self._start

    def self_connections(self) -> Tensor:
        bias = self.connection_bias
        return torch.tanh(self.start + bias.to(accumulation_dtype(bias)))

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        if self.recurrent is not None or self.skip is not None:
            return super().forward(x, state, context)
        sums = self.sums_of_inputs(x)
        if context.leading_padding is not None:
            sums = sums.masked_fill(context.leading_padding.t().unsqueeze(-1), 0)  # zeros stay zeros
        outputs = linear_scan(sums, self.self_connections(), state["x"])
        return outputs.transpose(0, 1), {"x": outputs[-1].clone()}
