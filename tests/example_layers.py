"""Output layers that exist only here."""

import torch
from torch import nn

from fairseq_plugins.output_layers.base import OutputLayer
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
