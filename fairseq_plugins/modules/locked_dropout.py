"""Dropout with one mask for all time steps."""

from typing import Sequence

from torch import Tensor, nn

from fairseq_plugins.flags.values import check_dropout


class LockedDropout(nn.Module):
    """Variational dropout: one mask for all time steps of a batch row.

    Gal & Ghahramani 2016, as used in AWD-LSTM (Merity et al. 2018, section 4.2). The mask is drawn
    anew at every call, kept values are divided by ``1 - rate``, and evaluation leaves the input alone.

    Args:
        rate: probability to drop a value, 0 <= rate < 1.
        flag: the command-line flag that sets the rate, for the message about a wrong one.
        shared_dims: dimensions over which the mask is shared, by default time.

    Shape:
        input and output: (B, T, *).

    Raises:
        ValueError: if the rate is outside [0, 1).
    """

    def __init__(self, rate: float, *, flag: str = "dropout", shared_dims: Sequence[int] = (1,)):
        super().__init__()
        self.rate = check_dropout(rate, flag=flag)
        self.shared_dims = tuple(shared_dims)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        shape = [1 if dim in self.shared_dims else size for dim, size in enumerate(x.shape)]
        return x * x.new_empty(shape).bernoulli_(1 - self.rate).div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, shared_dims={self.shared_dims}"
