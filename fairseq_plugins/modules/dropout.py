"""Dropout whose mask may be shared."""

from typing import Optional, Sequence

from torch import Tensor, nn

from fairseq_plugins.flags.values import check_dropout
from fairseq_plugins.ops.dropout_mask import dropout_mask

MASKS = {"locked": (1,), "standard": ()}
"""Dimensions of (B, T, *) that share a mask: time for locked dropout (Gal & Ghahramani 2016; Merity et al. 2018,
section 4.2), none for the standard one."""


class BroadcastDropout(nn.Module):
    """Dropout with one mask for all places along chosen dimensions.

    The mask is drawn anew at every call, kept values are divided by ``1 - rate``, and evaluation leaves the input
    alone.

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

    def mask(self, like: Tensor, size: Sequence[int]) -> Optional[Tensor]:
        """Factors for a tensor of ``size``, of size 1 where shared, in the type of ``like``; None where none drops."""
        if not self.training or self.rate == 0.0:
            return None
        shape = [1 if dim in self.shared_dims else length for dim, length in enumerate(size)]
        return dropout_mask(like, shape, rate=self.rate)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x, x.shape)
        return x if mask is None else x * mask

    def extra_repr(self) -> str:
        return f"rate={self.rate}, shared_dims={self.shared_dims}"
