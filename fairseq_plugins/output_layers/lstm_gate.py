"""The Input-to-Output Gate with an LSTM of its own (Takase, Suzuki & Nagata 2017, table 4).

Shapes: B batch, T time, D_g width of the gate's embedding and of its LSTM.
"""

from typing import Tuple, cast

from torch import Tensor

from fairseq_plugins.modules.lstm import BiasOptions, LSTMLayer
from fairseq_plugins.modules.recurrent_cell import CellContext, LayerState
from fairseq_plugins.modules.recurrent_state import State
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.gate import OUTPUT_GATES
from fairseq_plugins.output_layers.input_to_output_gate import InputToOutputGate, InputToOutputOptions


@OUTPUT_GATES.register("iog-lstm")
class LSTMGate(InputToOutputGate):
    """g = sigmoid(W_g h' + b_g), h' = LSTM(e', h'), one layer with one bias vector. Its state is that of the LSTM."""

    def add_modules(self, options: InputToOutputOptions) -> None:
        self.lstm = LSTMLayer(options.gate_dim, options.gate_dim, options=BiasOptions(rnn_biases="one"))

    def initial_state(self, like: Tensor) -> State:
        return self.lstm.initial_state(like)

    def features(self, embedded: Tensor, states: DecoderStates, state: State) -> Tuple[Tensor, State]:
        context = CellContext(stack_input=embedded, tokens=states.tokens)
        return self.lstm(embedded, cast(LayerState, state), context)
