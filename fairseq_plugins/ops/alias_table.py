"""Draws from a discrete distribution in constant time.

Shapes: V outcomes.
"""

from typing import List, Sequence, Tuple

import torch
from torch import Tensor


class AliasTable:
    """The table of Walker (1977), built as Vose (1991) does: V columns of one height, each shared by two outcomes.

    A draw picks a column, and in it the one or the other. Building takes O(V), a draw O(1).

    Args:
        weights: of the outcomes, (V), not negative, their sum above zero; one of weight zero is never drawn.

    Attributes:
        shares: of each column, how much is the outcome of its own number, (V), float64.
        aliases: the other outcome of each column, (V), int64.
    """

    def __init__(self, weights: Tensor):
        assert weights.dim() == 1 and bool((weights >= 0).all()) and bool(weights.sum() > 0)
        heights = weights.double() * (len(weights) / weights.double().sum())
        shares, aliases = _columns(heights.tolist())
        self.shares = torch.tensor(shares, dtype=torch.float64)
        self.aliases = torch.tensor(aliases)

    def draw(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        """Outcomes of this shape, int64, by the device's default generator; the table stays on the device."""
        self.shares, self.aliases = self.shares.to(device), self.aliases.to(device)
        columns = torch.randint(len(self.shares), tuple(shape), device=device)
        is_own = torch.rand(columns.shape, device=device) < self.shares[columns]
        return torch.where(is_own, columns, self.aliases[columns])


def _columns(heights: List[float]) -> Tuple[List[float], List[int]]:
    """Shares and aliases of columns of height 1 that the outcomes' heights, V in all, are poured into."""
    shares, aliases = list(heights), list(range(len(heights)))
    low = [i for i, height in enumerate(heights) if height < 1]
    high = [i for i, height in enumerate(heights) if height >= 1]
    while low and high:
        filled, giver = low.pop(), high[-1]
        aliases[filled] = giver
        shares[giver] -= 1 - shares[filled]
        if shares[giver] < 1:
            low.append(high.pop())
    for i in (*low, *high):  # full but for rounding
        shares[i], aliases[i] = 1.0, i
    return shares, aliases
