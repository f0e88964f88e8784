"""Penalties that are added to the loss of a language model.

Shapes: B batch rows, T time steps, D layer width, J experts. ``mask`` is (B, T), one where a position holds a token and
zero where it is padding. Every penalty is a scalar.
"""

from typing import Iterable

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import accumulation_dtype


def activation_regularization(output: Tensor, mask: Tensor) -> Tensor:
    """AR: mean of h^2 over time, batch and features (Merity et al. 2018, section 4.6).

    Args:
        output: last layer after its dropout, (B, T, D).
    """
    return _masked_mean(_widen(output).pow(2), mask)


def temporal_activation_regularization(output: Tensor, mask: Tensor) -> Tensor:
    """TAR: mean of (h_t - h_{t-1})^2 inside the window; zero for a window of one step.

    Args:
        output: last layer before its dropout, (B, T, D).
    """
    output = _widen(output)
    step = output[:, 1:] - output[:, :-1]
    return _masked_mean(step.pow(2), mask[:, 1:] * mask[:, :-1])


def prior_balance_by_row(prior: Tensor, mask: Tensor) -> Tensor:
    """Imbalance of the mixture as the program published with DOC computes it.

    S sums the prior over time, (B, J); the result is (J - 1) Var(S) / mean(S)^2 with the unbiased
    variance over all B * J entries. Unlike the paper's form it also counts differences between rows,
    and the factor J - 1 makes the same coefficient about J - 1 times stronger.

    Args:
        prior: mixture weights pi, (B, T, J).
    """
    num_experts = prior.size(-1)
    mass = (_widen(prior) * mask.unsqueeze(-1)).sum(dim=1)
    if num_experts == 1:
        return 0 * mass.sum()  # a single row would have no variance
    return (num_experts - 1) * mass.var() / mass.mean().pow(2)


def prior_balance_by_batch(prior: Tensor, mask: Tensor) -> Tensor:
    """Imbalance of the mixture as the paper defines it (Takase et al. 2018, eq. 13).

    S sums the prior over the whole batch, (J); the result is (std(S) / mean(S))^2 with the
    population standard deviation.

    Args:
        prior: mixture weights pi, (B, T, J).
    """
    mass = (_widen(prior) * mask.unsqueeze(-1)).sum(dim=(0, 1))
    return mass.var(unbiased=False) / mass.mean().pow(2)


def absolute_sum(weights: Iterable[Tensor]) -> Tensor:
    """L1: sum of |w| over all weights, each of any shape."""
    return _sum(torch.linalg.vector_norm(weight, ord=1, dtype=accumulation_dtype(weight)) for weight in weights)


def half_square_sum(weights: Iterable[Tensor]) -> Tensor:
    """L2: half the sum of w^2 over all weights, each of any shape; its gradient is the weight."""
    return _sum(_widen(weight).square().sum() / 2 for weight in weights)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    """The sum of scalars, 0 if there are none."""
    scalars = list(parts)
    return torch.stack(scalars).sum() if scalars else torch.zeros(())


def _widen(x: Tensor) -> Tensor:
    return x.to(accumulation_dtype(x))


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    weight = mask.to(values.dtype)
    num_values = weight.sum() * values.size(-1)
    return (values * weight.unsqueeze(-1)).sum() / torch.clamp(num_values, min=1)
