"""Major-Minor LSTM: every layer consists of a large and a small LSTM (Shuang et al. 2020).

Shapes: B batch rows, T time steps, C width of a layer's input, C_1 width of the stack's input, D width of the layer, of
which D_ma are the major LSTM's and D_mi the minor's.
"""

import math
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple, TypeVar

import torch
from torch import Tensor

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, LayerState, RecurrentCell, Step, map_state
from fairseq_plugins.modules.lstm import WeightDropLSTM, WeightDropOptions, update, zero_state
from fairseq_plugins.options import UserError, choices, parse_numbers

MINOR_INPUTS = ("embedding", "previous")
"""The input of minor LSTMs: that of the stack's first layer, or that of their major LSTM."""

MinorInput = choices(MINOR_INPUTS)
Input = TypeVar("Input", Tensor, Optional[Tensor])


@dataclass
class MajorMinorOptions(WeightDropOptions):
    """Flags of ``--rnn-cell mmlstm``."""

    major_proportions: str = field(
        default="0.9",
        metadata={
            "help": "share of each layer's width that its major LSTM has, above 0 and at most 1 (no minor LSTM); "
            'one for all layers, or one for each, "0.9 0.9 0.6" (default: 0.9)'
        },
    )
    minor_input: MinorInput = field(
        default="embedding",
        metadata={
            "help": "what minor LSTMs read. embedding: the input of the first layer (with input feeding, the "
            "attention output as well); previous: the layer below, like major LSTMs (default: embedding)"
        },
    )


@RECURRENT_CELLS.register("mmlstm")
class MajorMinorLSTM(RecurrentCell):
    """h = [LSTM_ma(v); LSTM_mi(e)] with v the layer below and e the input of the first layer  (section IV-C).

    The two LSTMs never see each other's state. The states h and c, (B, D), also have the major part first, so that a
    decoder uses the encoder's major states as major and its minor states as minor.

    Args:
        input_size: C.
        sizes: D_ma and D_mi.
        minor_input_size: C_1, or C for ``--minor-input previous``.
        options: flags.
    """

    Options = MajorMinorOptions

    def __init__(self, input_size: int, sizes: Tuple[int, int], *, minor_input_size: int, options: MajorMinorOptions):
        super().__init__()
        self.sizes = sizes
        self.hidden_size = sum(sizes)
        self.minor_reads_stack_input = options.minor_input == "embedding"
        self.major, self.minor = (
            WeightDropLSTM(width_in, width, options=options)
            for width_in, width in zip((input_size, minor_input_size), sizes)
        )

    @property
    def feature_groups(self) -> Dict[str, slice]:
        """The major and the minor LSTM's features."""
        return {"major": slice(0, self.sizes[0]), "minor": slice(self.sizes[0], self.hidden_size)}

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        proportions = _read_proportions(getattr(args, "major_proportions", MajorMinorOptions.major_proportions))
        return {"minor_input": "give --major-proportions below 1"} if set(proportions) == {1} else {}

    @classmethod
    def build_layers(
        cls, input_size: int, hidden_sizes: Sequence[int], *, options: MajorMinorOptions
    ) -> List[RecurrentCell]:
        """The layers of a stack, bottom first. A layer without a minor part is a plain LSTM.

        Raises:
            UserError: on proportions out of range, on too many or too few, or if a part would be empty.
        """
        proportions = _read_proportions(options.major_proportions)
        if len(proportions) == 1:
            proportions *= len(hidden_sizes)
        if len(proportions) != len(hidden_sizes):
            raise UserError(
                f'--major-proportions "{options.major_proportions}" has {len(proportions)} values for '
                f"{len(hidden_sizes)} layers: give one for all or one for each"
            )
        layers: List[RecurrentCell] = []
        input_sizes = [input_size, *hidden_sizes[:-1]]
        for width_in, width, proportion in zip(input_sizes, hidden_sizes, proportions):
            if proportion == 1:
                layers.append(WeightDropLSTM(width_in, width, options=options))
                continue
            minor_input_size = input_size if options.minor_input == "embedding" else width_in
            layers.append(cls(width_in, _split(width, proportion), minor_input_size=minor_input_size, options=options))
        return layers

    def initial_state(self, x: Tensor) -> LayerState:
        return zero_state(x, self.hidden_size)

    def steps(self, x: Tensor, context: CellContext) -> Step:
        major, minor = self.major.gates(x), self.minor.gates(self._minor_input(x, context.stack_input))

        def step(
            t: int, state: LayerState, x: Optional[Tensor], stack_input: Optional[Tensor]
        ) -> Tuple[Tensor, LayerState]:
            major_h, minor_h = state["h"].split(self.sizes, dim=1)
            gates = [major(t, x, major_h), minor(t, self._minor_input(x, stack_input), minor_h)]
            h, c = update(torch.cat(gates, dim=2), state["c"])
            return h, {"h": h, "c": c}

        return step

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        inputs = x, self._minor_input(x, context.stack_input)
        parts = {name: part.split(self.sizes, dim=1) for name, part in state.items()}
        runs = [
            lstm(lstm_input, {name: part[i] for name, part in parts.items()}, context)
            for i, (lstm, lstm_input) in enumerate(zip((self.major, self.minor), inputs))
        ]
        outputs, states = zip(*runs)
        return torch.cat(outputs, dim=-1), map_state(lambda *pair: torch.cat(pair, dim=1), *states)

    def _minor_input(self, own: Input, of_stack: Input) -> Input:
        return of_stack if self.minor_reads_stack_input else own


def _read_proportions(text: str) -> List[float]:
    return parse_numbers(text, float, flag="--major-proportions", example="0.9 0.9 0.6")


def _split(width: int, proportion: float) -> Tuple[int, int]:
    """D_ma and D_mi."""
    if not 0 < proportion < 1:
        raise UserError(f"--major-proportions {proportion:g}: a share is above 0 and at most 1 (1: no minor LSTM)")
    major = math.floor(proportion * width + 0.5)
    if not 0 < major < width:
        part = "minor" if major else "major"
        raise UserError(
            f"--major-proportions {proportion:g} leaves no {part} LSTM in a layer of width {width}: take another share"
            f"{', or 1 for none' if part == 'minor' else ''}"
        )
    return major, width - major
