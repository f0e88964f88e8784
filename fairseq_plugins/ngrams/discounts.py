"""The discounts of modified Kneser-Ney smoothing."""

from dataclasses import dataclass
from typing import Literal, Tuple

import torch
from torch import Tensor

FALLBACK = (0.5, 1.0, 1.5)
"""The discounts of a text that is too small to estimate them."""


@dataclass(frozen=True)
class Discounts:
    """What is taken from the counts of one order.

    Attributes:
        values: from a count of one, of two, and of three or more.
        source: "counts" if they were estimated, "fallback" if the counts define none.
    """

    values: Tuple[float, float, float]
    source: Literal["counts", "fallback"]

    def of(self, counts: Tensor) -> Tensor:
        """The discount of each count, float64 with the counts' shape; zero for a count of zero."""
        return torch.tensor([0.0, *self.values], dtype=torch.float64)[counts.clamp(max=3)]


def estimate_discounts(counts: Tensor) -> Discounts:
    """Discounts from counts of counts (Chen and Goodman 1998, equation 26).

    With n_i n-grams that have count i, Y = n_1 / (n_1 + 2 n_2) and D_i = i - (i + 1) Y n_(i+1) / n_i. If a D_i is not
    defined or not positive, all three are :data:`FALLBACK`.

    Args:
        counts: (N,) int64, adjusted counts of one order.
    """
    one, two, three, four = torch.bincount(counts.clamp(max=5), minlength=6)[1:5].tolist()
    if not (one and two and three):
        return Discounts(FALLBACK, "fallback")
    base = one / (one + 2 * two)
    values = (1 - 2 * base * two / one, 2 - 3 * base * three / two, 3 - 4 * base * four / three)
    return Discounts(values, "counts") if min(values) > 0 else Discounts(FALLBACK, "fallback")
