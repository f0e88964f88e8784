"""Linear interpolation of a mixture of softmaxes with another distribution, for the loss of given targets.

Shapes: * any leading dimensions, N tokens in all.
"""

from typing import NamedTuple, Union

import torch
from torch import Tensor


class Interpolation(NamedTuple):
    """P(y) = exp(log_weight) P_mixture(y) + exp(log_other) for each target y.

    Attributes:
        log_weight: log of the mixture's weight, (*), in the type of the mixture's log pi.
        log_other: log of the other distribution's weight times what it gives the target, (*), likewise; -inf where
            that is nothing.
    """

    log_weight: Tensor
    log_other: Tensor

    def flattened(self) -> "Interpolation":
        """The same with one leading dimension, (N)."""
        return Interpolation(self.log_weight.flatten(), self.log_other.flatten())

    def of_tokens(self, chosen: Union[slice, Tensor]) -> "Interpolation":
        """That of some tokens, of one with shape (N)."""
        return Interpolation(self.log_weight[chosen], self.log_other[chosen])

    def nll(self, mixture_nll: Tensor) -> Tensor:
        """-log P(y) from that of the mixture, (*)."""
        return -torch.logaddexp(self.log_weight - mixture_nll, self.log_other)

    def mixture_share(self, mixture_nll: Tensor, nll: Tensor) -> Tensor:
        """Share of the mixture in P(y), (*)."""
        return torch.exp(self.log_weight - mixture_nll + nll)

    def other_share(self, nll: Tensor) -> Tensor:
        """Share of the other distribution in P(y), (*), exact where it is small."""
        return torch.exp(self.log_other + nll)
