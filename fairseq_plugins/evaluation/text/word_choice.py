"""How the next word of a text is drawn.

Shapes: R rows, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from fairseq_plugins.flags.values import check_at_least_one, check_positive


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws words from P(w)^(1 / temperature), normalised, of the most probable words.

    Attributes:
        temperature: above 0; lower is closer to the most probable word.
        top_k: words that are drawn from, or None for all.
        top_p: the fewest words whose probabilities after the temperature sum up to this share are drawn from
            (Holtzman et al. 2020), 0 < top_p <= 1, or None for all; with ``top_k`` what both leave.

    Raises:
        ValueError: if a value does not fit.
    """

    temperature: float = 1.0
    top_k: Optional[int] = None
    top_p: Optional[float] = None

    def __post_init__(self) -> None:
        check_positive(self.temperature, flag="temperature")
        if self.top_k is not None:
            check_at_least_one(self.top_k, flag="top-k")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top-p {self.top_p}: give a share above 0, at most 1")

    def check_unused(self, *, beam: str) -> None:
        """Refuse what a beam search would not use; ``beam`` is what the user calls it.

        Raises:
            ValueError: if a value is not the default.
        """
        if self != Sampling():
            raise ValueError(f"{beam}: a search draws nothing; leave out temperature, top-k and top-p")

    def choose(self, log_probs: Tensor, draws: Tensor) -> Tensor:
        """A word for each row, (R,) int64.

        Args:
            log_probs: (R, V) float64, -inf for words that are left out; they need not be normalised.
            draws: (R,) float64 within [0, 1); equal draws give equal words.
        """
        highest = log_probs.max(dim=1, keepdim=True).values  # of which no temperature is too low to divide
        scaled = torch.log_softmax((log_probs - highest) / self.temperature, dim=1)
        if self.top_k is None and self.top_p is None:
            return _drawn_places(scaled.exp(), draws)
        sorted_log_probs, words = scaled.sort(dim=1, descending=True, stable=True)
        probs = sorted_log_probs.exp()
        if self.top_k is not None:
            probs[:, self.top_k :] = 0
        if self.top_p is not None:
            before = sorted_log_probs.exp().cumsum(dim=1) - sorted_log_probs.exp()
            probs[before >= self.top_p] = 0
        return words.gather(1, _drawn_places(probs, draws).unsqueeze(1)).squeeze(1)


def _drawn_places(probs: Tensor, draws: Tensor) -> Tensor:
    """A column for each row, (R,), of (R, V) probabilities up to a factor."""
    sums = probs.cumsum(dim=1)
    # a draw times the total may be rounded up to it
    drawn = torch.minimum(draws.unsqueeze(1) * sums[:, -1:], sums[:, -1:] * (1 - math.ulp(1.0)))
    return torch.searchsorted(sums, drawn, right=True).squeeze(1)
