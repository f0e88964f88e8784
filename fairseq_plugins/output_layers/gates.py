"""Gates on the logits of any output layer: their registry, and the Input-to-Output Gate (Takase et al. 2017).

Shapes: B batch, T time, D_n width of decoder layer n (D_0: embedding, D_N: the last), V vocabulary, D_g width of the
gate's own embedding, F features of the gate.
"""

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Tuple, cast

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.cell import CellContext, LayerState, State
from fairseq_plugins.modules.layers import BroadcastDropout, initialise_uniformly
from fairseq_plugins.modules.lstm import BiasOptions, LSTMLayer
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.options import check_at_least_one, check_positive
from fairseq_plugins.output_layers.scores import DecoderStates
from fairseq_plugins.parts import NONE, Part, Registry


class OutputGate(Part, nn.Module):
    """Multiplies the logits of an output layer by numbers between 0 and 1, the same for all softmaxes of a mixture.

    To add a value of ``--output-gate``, a subclass registers itself with ``OUTPUT_GATES.register``, declares its flags
    in the dataclass ``Options`` and implements :meth:`forward`. It works with every output layer that has logits.
    The constructor is called with keywords: ``dictionary`` (fairseq's, of size V), ``layer_widths`` (D_0 .. D_N) and
    ``options`` (an instance of ``Options``).

    A recurrent gate also overrides :meth:`initial_state`. Its state is a part of the decoder's state: it is carried
    along a stream, reordered in beam search and saved in checkpoints.
    """

    def initial_state(self, like: Tensor) -> State:
        """The state before the first token, with the rows, dtype and device of ``like`` (B, ...)."""
        return {}

    def forward(self, states: DecoderStates, state: State) -> Tuple[Optional[LogitGate], State]:
        """The gate at every position, with features (B, T, F), and the state after the last one."""
        raise NotImplementedError


OUTPUT_GATES: Registry[OutputGate] = Registry(
    "--output-gate", help="what multiplies the logits of the output layer (default: none)"
)
"""Values of ``--output-gate``."""


@OUTPUT_GATES.register(NONE)
class NoGate(OutputGate):
    """Leaves the logits as they are."""

    def __init__(self, **unused: Any):
        super().__init__()

    def forward(self, states: DecoderStates, state: State) -> Tuple[None, State]:
        return None, state


@dataclass
class InputToOutputOptions(FairseqDataclass):
    """Flags of every Input-to-Output Gate."""

    gate_dim: int = field(default=300, metadata={"help": "width of the gate's own word embedding (default: 300)"})
    gate_dropout: float = field(
        default=0.5,
        metadata={
            "help": "dropout rate of the gate's embedded input, drawn for every step, row and feature (default: 0.5)"
        },
    )
    gate_init_range: float = field(
        default=0.05,
        metadata={
            "help": "the gate's matrices start uniform in [-R, R], where R is this range, and its biases at zero, "
            "so that it starts near one half; a model's --init-range overrides this (default: 0.05)"
        },
    )


@OUTPUT_GATES.register("iog")
class InputToOutputGate(OutputGate):
    """g = sigmoid(W_g e' + b_g), e' = E_g x: reads only the input word x, with an embedding of its own.

    A subclass adds features by :meth:`num_features`, :meth:`features` and :meth:`add_modules`.

    Raises:
        UserError: on a width below one, a rate outside [0, 1) or a range that is not above zero.
    """

    Options = InputToOutputOptions

    def __init__(self, *, dictionary: Dictionary, layer_widths: Sequence[int], options: InputToOutputOptions):
        super().__init__()
        check_at_least_one(options.gate_dim, flag="--gate-dim")
        init_range = check_positive(options.gate_init_range, flag="--gate-init-range")
        self.embedding = nn.Embedding(len(dictionary), options.gate_dim)
        self.dropout = BroadcastDropout(options.gate_dropout, flag="--gate-dropout", shared_dims=())
        self.linear = nn.Linear(self.num_features(layer_widths, options), len(dictionary))
        self.add_modules(options)
        initialise_uniformly(self, init_range, biases="zero")

    @staticmethod
    def num_features(layer_widths: Sequence[int], options: InputToOutputOptions) -> int:
        """F for a decoder with the layer widths D_0 .. D_N."""
        return options.gate_dim

    def add_modules(self, options: InputToOutputOptions) -> None:
        """Add modules that :meth:`features` needs. The constructor draws their parameters with all others."""

    def features(self, embedded: Tensor, states: DecoderStates, state: State) -> Tuple[Tensor, State]:
        """The input of W_g, (B, T, F), given e' after dropout, (B, T, D_g), and the state after the last step."""
        return embedded, state

    def forward(self, states: DecoderStates, state: State) -> Tuple[LogitGate, State]:
        embedded = self.dropout(self.embedding(states.tokens))
        features, state = self.features(embedded, states, state)
        return LogitGate(features, self.linear.weight, self.linear.bias), state


@OUTPUT_GATES.register("iog-hidden")
class HiddenGate(InputToOutputGate):
    """g = sigmoid(W_g [h; e'] + b_g) with h, the last layer after its dropout (Takase et al. 2017, table 4).

    F = D_N + D_g.
    """

    @staticmethod
    def num_features(layer_widths: Sequence[int], options: InputToOutputOptions) -> int:
        return layer_widths[-1] + options.gate_dim

    def features(self, embedded: Tensor, states: DecoderStates, state: State) -> Tuple[Tensor, State]:
        return torch.cat([states.layers[-1], embedded], dim=-1), state


@OUTPUT_GATES.register("iog-lstm")
class LSTMGate(InputToOutputGate):
    """g = sigmoid(W_g h' + b_g), h' = LSTM(e', h'), with an LSTM of its own (Takase et al. 2017, table 4).

    The LSTM is D_g wide and has one bias vector. Its state is the state of the gate.
    """

    def add_modules(self, options: InputToOutputOptions) -> None:
        self.lstm = LSTMLayer(options.gate_dim, options.gate_dim, options=BiasOptions(rnn_biases="one"))

    def initial_state(self, like: Tensor) -> State:
        return self.lstm.initial_state(like)

    def features(self, embedded: Tensor, states: DecoderStates, state: State) -> Tuple[Tensor, State]:
        context = CellContext(stack_input=embedded, tokens=states.tokens)
        return self.lstm(embedded, cast(LayerState, state), context)
