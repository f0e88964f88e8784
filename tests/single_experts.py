"""Experts of a mixture one by one, by a prior that rules the others out."""

from contextlib import contextmanager
from typing import Callable, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.models.gated_lm import GatedDecoder
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.scores import Scores


def output_layer(model: nn.Module) -> OutputLayer:
    """The output layer of a model, or of its base if it is gated."""
    decoder = model.decoder
    return decoder.members[0].output if isinstance(decoder, GatedDecoder) else decoder.output


@contextmanager
def only_expert(output: OutputLayer, expert: int):
    """Within, the mixture of an output layer has this expert alone."""
    scores = output.prior_scores

    def ruled_out(layers):
        others = torch.full_like(scores(layers), float("-inf"))
        others[..., expert] = 0
        return others

    output.prior_scores = ruled_out
    try:
        yield
    finally:
        del output.prior_scores


def mean_log_probs(output: OutputLayer, distribution: Callable[[], Scores]) -> Tuple[Tensor, Tensor]:
    """log P, (B, T, V), and its mean over all words, (B, T); of a mixture the prior's mean of that of its experts.

    Args:
        output: by which ``distribution`` is computed.
        distribution: the same whenever it is called.
    """
    scores = distribution()
    if scores.mixture_weights is None:
        return scores.log_probs, scores.log_probs.mean(-1)
    means = []
    for expert in range(scores.mixture_weights.size(-1)):
        with only_expert(output, expert):
            means.append(distribution().log_probs.mean(-1))
    return scores.log_probs, (scores.mixture_weights * torch.stack(means, dim=-1)).sum(-1)
