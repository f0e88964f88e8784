"""Parts as a user would write them, which exist only here: an output layer, and gates with and without state."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from torch import nn

from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.gates import OutputGate
from fairseq_plugins.output_layers.scores import Scores


class OwnSoftmax(OutputLayer):
    """P(v) proportional to exp(w_v h): no more than a layer must have."""

    name = "own"

    def __init__(self, *, dictionary, layer_widths, shared_weight, options):
        super().__init__()
        assert shared_weight is None
        self.linear = nn.Linear(layer_widths[-1], len(dictionary), bias=False)

    def log_probs(self, states, gate=None):
        return Scores(log_probs=torch.log_softmax(self.linear(states.layers[-1]), dim=-1, dtype=torch.float32))


class TopGate(OutputGate):
    """Reads the last layer."""

    def __init__(self, *, dictionary, layer_widths, options):
        super().__init__()
        self.linear = nn.Linear(layer_widths[-1], len(dictionary))

    def forward(self, states, state):
        return LogitGate(states.layers[-1], self.linear.weight, self.linear.bias), state


@dataclass
class TraceOptions(FairseqDataclass):
    """Flags of the gate."""

    trace_decay: float = field(default=0.5, metadata={"help": "share of the trace that is left after a step"})


class TraceGate(OutputGate):
    """Reads an exponential trace of the input embedding, its state: x_t = decay x_{t-1} + scale * e_t."""

    Options = TraceOptions

    def __init__(self, *, dictionary, layer_widths, options):
        super().__init__()
        self.width, self.decay = layer_widths[0], options.trace_decay
        self.scale = nn.Parameter(torch.ones(self.width))
        self.linear = nn.Linear(self.width, len(dictionary))

    def initial_state(self, like):
        return like.new_zeros(len(like), self.width)

    def forward(self, states, state):
        trace, features = state, []
        for embedded in states.layers[0].unbind(dim=1):
            trace = self.decay * trace + self.scale * embedded
            features.append(trace)
        return LogitGate(torch.stack(features, dim=1), self.linear.weight, self.linear.bias), trace


EXAMPLE_GATES = {"top": TopGate, "trace": TraceGate}
