"""The Input-to-Output Gate with the hidden state (Takase, Suzuki & Nagata 2017, table 4).

Shapes: B batch, T time, D_g width of the gate's embedding, D_N width of the last layer, F = D_N + D_g features.
"""

from typing import Sequence, Tuple

import torch
from torch import Tensor

from fairseq_plugins.modules.recurrent_state import State
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.gate import OUTPUT_GATES
from fairseq_plugins.output_layers.input_to_output_gate import InputToOutputGate, InputToOutputOptions


@OUTPUT_GATES.register("iog-hidden")
class HiddenGate(InputToOutputGate):
    """g = sigmoid(W_g [h; e'] + b_g) with what the output layer reads, h, the last layer after its dropout."""

    @staticmethod
    def num_features(layer_widths: Sequence[int], options: InputToOutputOptions) -> int:
        return layer_widths[-1] + options.gate_dim

    def features(self, embedded: Tensor, states: DecoderStates, state: State) -> Tuple[Tensor, State]:
        return torch.cat([states.layers[-1], embedded], dim=-1), state
