"""Output layers that exist only here."""

import torch
from torch import nn

from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.scores import Scores
from fairseq_plugins.output_layers.softmax import FullSoftmax


class UnigramSoftmax(OutputLayer):
    """P(v) proportional to (1 + count of v in the training text) exp(w_v h): a layer that reads word counts."""

    name = "unigram"
    needs_word_counts = True

    def __init__(self, *, dictionary, layer_widths, shared_weight, options):
        super().__init__()
        assert shared_weight is None
        self.linear = nn.Linear(layer_widths[-1], len(dictionary), bias=False)

    def log_probs(self, states, gate=None):
        logits = self.linear(states.layers[-1]) + torch.log1p(self.word_counts())
        return Scores(log_probs=torch.log_softmax(logits, dim=-1, dtype=torch.float32))


class UnnormalisedSoftmax(FullSoftmax):
    """Learns that the logit of the target is 1 and those of the other words 0, without any sum over the vocabulary."""

    name = "unnormalised"

    def training_loss(self, states, target, gate=None, *, token_weights=None, label_smoothing=0.0, interpolation=None):
        if interpolation is not None:
            raise ValueError(f"--copying: --output-layer {self.name} learns no probabilities, leave it out")
        logits = self.projection(states.layers[-1])
        losses = (logits - nn.functional.one_hot(target, logits.size(-1))).square().sum(dim=-1)
        return Scores(loss=(losses if token_weights is None else losses * token_weights).sum())
