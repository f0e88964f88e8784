"""Recurrent highway network: several micro-layers at every step (Zilly et al. 2017).

Shapes: B batch rows, T time steps, C input width, of which C' columns are precomputed, D width, L micro-layers.
"""

import math
from dataclasses import dataclass, field
from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, LayerState, RecurrentCell, Step
from fairseq_plugins.modules.layers import ModuleSequence
from fairseq_plugins.modules.lstm import RecurrentDropoutOptions, recurrent_dropout
from fairseq_plugins.ops.matmul import linear
from fairseq_plugins.ops.recurrence import StepProducts, recurrent_highway
from fairseq_plugins.options import UserError, check_at_least_one, choices

TRANSFORM_INPUTS = ("state", "candidate")
"""Input of a micro-layer's transform gate: the masked state before the micro-layer, or its own candidate."""

TransformInput = choices(TRANSFORM_INPUTS)


@dataclass
class RecurrentHighwayOptions(RecurrentDropoutOptions):
    """Flags of ``--rnn-cell rhn``."""

    recurrence_depth: int = field(default=4, metadata={"help": "number of micro-layers in a layer (default: 4)"})
    transform_input: TransformInput = field(
        default="state",
        metadata={
            "help": "what the transform gates read. state: the state before their micro-layer, as in Zilly et al. "
            "2017; candidate: what the micro-layer has just computed, as in the program of Takase et al. "
            "2017 (default: state)"
        },
    )
    transform_bias: float = field(
        default=-2.0,
        metadata={
            "help": "number added to the trained biases of the transform gates; below 0 the gates start nearly "
            "closed and carry the state on (default: -2.0)"
        },
    )


@RECURRENT_CELLS.register("rhn")
class RecurrentHighway(RecurrentCell):
    """s <- (h - s) t + s for each micro-layer, with h = tanh(R_H (m s) + b_H), t = sigmoid(R_T (m s) + b_T).

    Zilly et al. 2017. The first micro-layer adds W_H x and W_T x. Each window and row draws a mask m that all
    micro-layers and steps share. It affects only the matrices' input; the carried s is not masked. With
    ``--transform-input candidate`` the gate is t = sigmoid(R_T h + b_T), without a mask. Output and state are s after
    the last micro-layer, (B, D). The language model draws the other masks of a variational network, with
    ``--dropout-masks locked`` and ``--word-masks row``.

    Args:
        input_size: C.
        hidden_size: D.
        options: flags.

    Raises:
        UserError: on a depth below one, or a bias that is not finite.
    """

    Options = RecurrentHighwayOptions
    bias_offset: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, options: RecurrentHighwayOptions):
        super().__init__()
        depth = check_at_least_one(options.recurrence_depth, flag="--recurrence-depth")
        if not math.isfinite(options.transform_bias):
            raise UserError(f"--transform-bias {options.transform_bias}: give a finite number")
        self.hidden_size = hidden_size
        self.reads_candidate = options.transform_input == "candidate"
        # rows of matrices and biases: candidates first, then transform gates
        self.input = nn.Linear(input_size, 2 * hidden_size, bias=False)
        self.micro_layers: ModuleSequence[nn.Linear] = ModuleSequence(
            nn.Linear(hidden_size, 2 * hidden_size) for _ in range(depth)
        )
        offset = torch.tensor([0.0, options.transform_bias]).repeat_interleave(hidden_size)
        self.register_buffer("bias_offset", offset, persistent=False)
        self.recurrent_dropout = recurrent_dropout(options)

    def initial_state(self, x: Tensor) -> LayerState:
        return {"s": x.new_zeros(x.size(0), self.hidden_size)}

    def biases(self) -> List[Tensor]:
        """Biases of each micro-layer, (2 D), with the initial bias of its gates added."""
        return [layer.bias + self.bias_offset for layer in self.micro_layers]

    def steps(self, x: Tensor, context: CellContext) -> Step:
        num_rows, num_steps, num_precomputed = x.shape
        precomputed_weight, step_weight = self.input.weight.tensor_split([num_precomputed], dim=1)
        addends = [bias.expand(num_steps, num_rows, -1) for bias in self.biases()]
        weights = [layer.weight for layer in self.micro_layers]
        if num_precomputed > 0:
            addends[0] = addends[0] + linear(x.transpose(0, 1), precomputed_weight, None)
        weights[0] = torch.cat([step_weight, weights[0]], dim=1)
        num_parts = 2 if self.reads_candidate else 1  # of candidates and gates together, or of each
        products = [
            [StepProducts(*part) for part in zip(addend.chunk(num_parts, dim=-1), weight.t().chunk(num_parts, dim=-1))]
            for addend, weight in zip(addends, weights)
        ]
        mask = self.recurrent_dropout.mask(x, (num_rows, self.hidden_size))

        def step(t: int, state: LayerState, x: Optional[Tensor], _: Optional[Tensor]) -> Tuple[Tensor, LayerState]:
            s = state["s"]
            for parts in products:
                masked = s if mask is None else s * mask
                if self.reads_candidate:
                    of_candidate, of_gate = parts
                    candidate = torch.tanh(of_candidate(t, _concatenate(x, masked)))
                    gate = torch.sigmoid(of_gate(t, _concatenate(x, candidate)))
                else:
                    candidate, gate = parts[0](t, _concatenate(x, masked)).chunk(2, dim=1)
                    candidate, gate = torch.tanh(candidate), torch.sigmoid(gate)
                s = torch.addcmul(s, candidate - s, gate)
                x = None  # only the first micro-layer reads the input
            return s, {"s": s}

        return step

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        if self.reads_candidate:
            return super().forward(x, state, context)
        padding = context.leading_padding
        outputs = recurrent_highway(
            linear(x.transpose(0, 1), self.input.weight, None),
            [layer.weight for layer in self.micro_layers],
            self.biases(),
            state["s"],
            mask=self.recurrent_dropout.mask(x, (x.size(0), self.hidden_size)),
            keep=None if padding is None else ~padding.t().unsqueeze(-1),
            graphs=context.graphs,
        )
        return outputs.transpose(0, 1), {"s": outputs[-1].clone()}


def _concatenate(x: Optional[Tensor], s: Tensor) -> Tensor:
    return s if x is None else torch.cat([x, s], dim=1)
