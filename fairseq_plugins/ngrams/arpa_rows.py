"""The n-grams of an ARPA file: n-gram models as text, which KenLM, SRILM and others write and read.

A file has, for each order, a line for each n-gram: the logarithm to base 10 of its probability, its words, and the
logarithm of its back-off weight, which may be left out where it is zero.
"""

from dataclasses import dataclass

from torch import Tensor

LOG_ZERO = -99.0
"""The logarithm that files have for a probability of zero."""


@dataclass(frozen=True)
class ArpaRows:
    """n-grams of one order.

    Shapes: N n-grams of order k.

    Attributes:
        words: (N, k) int64, numbers in the dictionary.
        log10_probs: (N,) float64, minus infinity for a probability of zero.
        log10_backoffs: (N,) float64, zero in the highest order.
    """

    words: Tensor
    log10_probs: Tensor
    log10_backoffs: Tensor

    @property
    def order(self) -> int:
        """k."""
        return self.words.shape[1]
