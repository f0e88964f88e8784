"""Dropout whose mask may be shared."""

import warnings
from typing import Any, Optional, Sequence

from torch import Tensor, nn

from fairseq_plugins.flags.values import check_dropout
from fairseq_plugins.ops.dropout_mask import dropout_mask

MASKS = {"locked": (1,), "standard": ()}
"""Dimensions of (B, T, *) that share a mask: time for locked dropout (Gal & Ghahramani 2016; Merity et al. 2018,
section 4.2), none for the standard one."""


class DropsAtRandom:
    """What makes a module one that drops something: in training, and in evaluation where masks are sampled.

    Attributes:
        evaluation_scale: factor of the rate in evaluation mode; 0, by which nothing is dropped, unless an evaluation
            samples masks.
    """

    training: bool
    evaluation_scale: float = 0.0

    @property
    def trained_rate(self) -> float:
        """The rate in training."""
        raise NotImplementedError

    @property
    def current_rate(self) -> float:
        """That of training in training mode, and in evaluation mode the share of it that is sampled."""
        return self.trained_rate if self.training else self.evaluation_scale * self.trained_rate

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Optional[Sequence[str]] = None, **unused: Any
    ) -> None:
        """Called by the host before it decodes: drop there too, with ``--retain-dropout`` for all modules."""
        if retain_dropout and retain_dropout_modules is None:
            self.evaluation_scale = 1.0
        elif retain_dropout:
            warnings.warn("--retain-dropout-modules: those of fairseq_plugins drop only without it", stacklevel=2)


class BroadcastDropout(DropsAtRandom, nn.Module):
    """Dropout with one mask for all places along chosen dimensions.

    The mask is drawn anew at every call, kept values are divided by ``1 - rate``, and evaluation leaves the input
    alone, unless masks are sampled.

    Args:
        rate: probability to drop a value, 0 <= rate < 1.
        flag: the command-line flag that sets the rate, for the message about a wrong one.
        shared_dims: dimensions over which the mask is shared; see :data:`MASKS`.

    Raises:
        ValueError: if the rate is outside [0, 1).
    """

    def __init__(self, rate: float, *, flag: str, shared_dims: Sequence[int]):
        super().__init__()
        self.rate = check_dropout(rate, flag=flag)
        self.shared_dims = tuple(shared_dims)

    @property
    def trained_rate(self) -> float:
        return self.rate

    def mask(self, like: Tensor, size: Sequence[int]) -> Optional[Tensor]:
        """Factors for a tensor of ``size``, of size 1 where shared, in the type of ``like``; None where none drops."""
        rate = self.current_rate
        if rate == 0.0:
            return None
        shape = [1 if dim in self.shared_dims else length for dim, length in enumerate(size)]
        return dropout_mask(like, shape, rate=rate)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x, x.shape)
        return x if mask is None else x * mask

    def extra_repr(self) -> str:
        return f"rate={self.rate}, shared_dims={self.shared_dims}"
