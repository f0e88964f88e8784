"""Linear interpolation of distributions, known by the probabilities of the targets alone.

Shapes: B rows, T window length.
"""

from typing import Sequence

import torch
from torch import Tensor

from fairseq_plugins.evaluation.test_time.component import ComponentScores


def interpolate(log_probs: Tensor, components: Sequence[ComponentScores], weights: Sequence[float]) -> Tensor:
    """log((1 - sum_i w_i) p + sum_i w_i p_i), (B, T) float64, where the sums are over the components that are known.

    Args:
        log_probs: log p of the model, (B, T) float64; what is returned where nothing else has a weight.
        components: log p_i.
        weights: w_i, at least 0 and below 1 together.
    """
    assert min(weights, default=0.0) >= 0 and sum(weights) < 1
    weighted = [(one, weight) for one, weight in zip(components, weights) if weight > 0]
    if not weighted:
        return log_probs
    shares = [one.known.double() * weight for one, weight in weighted]
    rest = 1 - torch.stack(shares).sum(dim=0)
    parts = [log_probs + rest.log()]
    for (one, _), share in zip(weighted, shares):
        parts.append(torch.where(one.known, one.log_probs + share.log(), -torch.inf))
    return torch.logsumexp(torch.stack(parts), dim=0)
