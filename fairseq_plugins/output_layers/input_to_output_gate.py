"""The Input-to-Output Gate (Takase, Suzuki & Nagata 2017).

Shapes: B batch, T time, D_g width of the gate's embedding, F features of the gate, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Sequence, Tuple

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_at_least_one, check_positive
from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.initialisation import initialise_uniformly
from fairseq_plugins.modules.recurrent_state import State
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.gate import OUTPUT_GATES, OutputGate


@dataclass
class InputToOutputOptions(FairseqDataclass):
    """Flags of every gate that reads the input word."""

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
            "help": "the gate's matrices start uniformly within plus and minus this, its biases at zero, so that it "
            "starts near one half; where the model has an --init-range or --init, that holds (default: 0.05)"
        },
    )


@OUTPUT_GATES.register("iog")
class InputToOutputGate(OutputGate):
    """g = sigmoid(W_g e' + b_g) of the input word alone, e' = E_g x with an embedding of the gate's own.

    Raises:
        ValueError: on a width below one, a rate outside [0, 1) or a range that is not above zero.
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
        """F, for a decoder whose layers have the widths D_0 .. D_N."""
        return options.gate_dim

    def add_modules(self, options: InputToOutputOptions) -> None:
        """Add the modules that :meth:`features` uses, by default none; their parameters are drawn with all others."""

    def features(self, embedded: Tensor, states: DecoderStates, state: State) -> Tuple[Tensor, State]:
        """What W_g reads, (B, T, F), from e' after its dropout, (B, T, D_g), and the state after the last step."""
        return embedded, state

    def forward(self, states: DecoderStates, state: State) -> Tuple[LogitGate, State]:
        embedded = self.dropout(self.embedding(states.tokens))
        features, state = self.features(embedded, states, state)
        return LogitGate(features, self.linear.weight, self.linear.bias), state
