"""Gates that exist only here: with and without recurrent state."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from torch import nn

from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, OutputGate


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


EXAMPLES = {"top": TopGate, "trace": TraceGate}


@contextmanager
def registered():
    """Within the context, the gates are values of ``--output-gate``."""
    before = dict(OUTPUT_GATES)
    try:
        for name, gate in EXAMPLES.items():
            OUTPUT_GATES.register(name)(gate)
        yield
    finally:
        for name in OUTPUT_GATES.keys() - before:
            del OUTPUT_GATES[name]
