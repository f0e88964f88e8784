"""Several distributions as one, which averages their probabilities.

Shapes: * any.
"""

import math
from typing import Sequence

import torch
from torch import Tensor


def mean_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Log of the mean of probabilities, (*), from those of each distribution, (*); one alone stays as it is."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0) - math.log(len(log_probs))


def responsibilities(log_probs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Share of each distribution in the mean of their probabilities, (*) each: the shares add up to one.

    They are the weights in the gradient of the mean's logarithm: that of each distribution's, times its share.
    """
    return torch.softmax(torch.stack(list(log_probs)), dim=0).unbind(0)
