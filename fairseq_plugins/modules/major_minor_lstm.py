"""Major-Minor LSTM: every layer is a large and a small LSTM side by side (Shuang et al. 2020).

Shapes: B batch rows, T time steps, C width of a layer's input, C_1 width of the stack's input, D width of the layer, of
which D_ma are the major LSTM's and D_mi the minor's.
"""

import math
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_plugins.flags.values import parse_float_list
from fairseq_plugins.modules.lstm import LSTMSteps, WeightDropLSTM, update
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, LayerState, RecurrentCell
from fairseq_plugins.modules.saved_setting import SavesSettings

MINOR_INPUTS = ("embedding", "previous")
"""What the minor LSTMs read: what the first layer of the stack reads, or what their major LSTM reads."""


@dataclass
class MajorMinorOptions(FairseqDataclass):
    """Flags of ``--rnn-cell mmlstm``."""

    major_proportions: str = field(
        default="0.9",
        metadata={
            "help": "share of each layer's width that its major LSTM has, above 0 and at most 1, "
            'which means no minor LSTM: one for all layers, or one for each, "0.9 0.9 0.6" (default: 0.9)'
        },
    )
    minor_input: ChoiceEnum(MINOR_INPUTS) = field(
        default="embedding",
        metadata={
            "help": "what the minor LSTMs read: embedding, the input of the first layer, which with input "
            "feeding holds what is fed, too; previous, the layer below, as the major LSTMs do (default: embedding)"
        },
    )


@RECURRENT_CELLS.register("mmlstm")
class MajorMinorLSTM(RecurrentCell, SavesSettings):
    """A layer whose two LSTMs never see each other's state; its output is theirs, the major's first.

    Shuang et al. 2020, section IV-C: h = [LSTM_ma(v); LSTM_mi(e)] with v the layer below and e the input of the first
    layer. States h and c, (B, D), hold the major's part first as well, so that a decoder takes over the encoder's
    major states as major and its minor ones as minor.

    Args:
        input_size: C.
        sizes: D_ma and D_mi.
        minor_input_size: C_1, or C for ``minor_input`` previous.
        minor_input: a value of :data:`MINOR_INPUTS`.
        weight_dropout: drop rate of the elements of both recurrent matrices.

    Raises:
        ValueError: on an unknown minor input.
    """

    Options = MajorMinorOptions

    def __init__(
        self,
        input_size: int,
        sizes: Tuple[int, int],
        *,
        minor_input_size: int,
        minor_input: str = "embedding",
        weight_dropout: float = 0.0,
    ):
        super().__init__()
        if minor_input not in MINOR_INPUTS:
            raise ValueError(f"--minor-input {minor_input}: choose one of {', '.join(MINOR_INPUTS)}")
        self.save_setting("minor_input_name", flag="--minor-input", value=minor_input)
        self.sizes = sizes
        self.hidden_size = sum(sizes)
        self.minor_input = minor_input
        self.major, self.minor = (
            WeightDropLSTM(width_in, width, weight_dropout=weight_dropout)
            for width_in, width in zip((input_size, minor_input_size), sizes)
        )

    @property
    def feature_groups(self) -> Dict[str, slice]:
        """The major and the minor LSTM's features."""
        return {"major": slice(0, self.sizes[0]), "minor": slice(self.sizes[0], self.hidden_size)}

    @classmethod
    def build_layers(
        cls, input_size: int, hidden_sizes: Sequence[int], *, weight_dropout: float, options: MajorMinorOptions
    ) -> List[RecurrentCell]:
        """The layers of a stack; one without a minor part is an LSTM.

        Raises:
            ValueError: on proportions that are no share, too many or too few, or that leave a part empty.
        """
        proportions = parse_float_list(options.major_proportions, flag="--major-proportions")
        if len(proportions) == 1:
            proportions *= len(hidden_sizes)
        if len(proportions) != len(hidden_sizes):
            raise ValueError(
                f'--major-proportions "{options.major_proportions}" has {len(proportions)} values for '
                f"{len(hidden_sizes)} layers: give one for all or one for each"
            )
        layers = []
        input_sizes = [input_size, *hidden_sizes[:-1]]
        for width_in, width, proportion in zip(input_sizes, hidden_sizes, proportions):
            if proportion == 1:
                layers.append(WeightDropLSTM(width_in, width, weight_dropout=weight_dropout))
                continue
            layers.append(
                cls(
                    width_in,
                    _split(width, proportion),
                    minor_input_size=input_size if options.minor_input == "embedding" else width_in,
                    minor_input=options.minor_input,
                    weight_dropout=weight_dropout,
                )
            )
        return layers

    def forward(
        self,
        x: Tensor,
        state: Optional[LayerState] = None,
        *,
        stack_input: Optional[Tensor] = None,
        leading_padding: Optional[Tensor] = None,
    ) -> Tuple[Tensor, LayerState]:
        h, c = self.initial_state(x) if state is None else state
        major_state, minor_state = zip(h.split(self.sizes, dim=1), c.split(self.sizes, dim=1))
        minor_input = stack_input if self.minor_input == "embedding" else x
        major, major_state = self.major(x, major_state, leading_padding=leading_padding)
        minor, minor_state = self.minor(minor_input, minor_state, leading_padding=leading_padding)
        state = tuple(torch.cat(parts, dim=1) for parts in zip(major_state, minor_state))
        return torch.cat([major, minor], dim=-1), state

    def steps(self, known: Optional[Tensor] = None, *, stack_known: Optional[Tensor] = None) -> "MajorMinorSteps":
        minor_known = stack_known if self.minor_input == "embedding" else known
        return MajorMinorSteps(
            major=self.major.steps(known), minor=self.minor.steps(minor_known), minor_input=self.minor_input
        )


class MajorMinorSteps:
    """The steps of both LSTMs of a layer over one sequence.

    Args:
        major, minor: their steps.
        minor_input: a value of :data:`MINOR_INPUTS`.
    """

    def __init__(self, *, major: LSTMSteps, minor: LSTMSteps, minor_input: str):
        self.major = major
        self.minor = minor
        self.minor_input = minor_input

    def __call__(self, t: int, late: Tensor, state: LayerState, *, stack_late: Tensor) -> LayerState:
        h, c = state
        major_h, minor_h = h.split((self.major.hidden_size, self.minor.hidden_size), dim=1)
        minor_late = stack_late if self.minor_input == "embedding" else late
        gates = [self.major.gates(t, late, major_h), self.minor.gates(t, minor_late, minor_h)]
        return update(torch.cat(gates, dim=2), c)


def _split(width: int, proportion: float) -> Tuple[int, int]:
    """D_ma and D_mi."""
    if not 0 < proportion < 1:
        raise ValueError(f"--major-proportions {proportion:g}: a share is above 0 and at most 1 (1: no minor LSTM)")
    major = math.floor(proportion * width + 0.5)
    if not 0 < major < width:
        part = "minor" if major else "major"
        raise ValueError(
            f"--major-proportions {proportion:g} leaves no {part} LSTM in a layer of width {width}: take another share"
            f"{', or 1 for none' if part == 'minor' else ''}"
        )
    return major, width - major
