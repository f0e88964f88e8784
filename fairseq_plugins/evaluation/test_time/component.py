"""Distributions that are mixed with a model's.

Shapes: B rows, T window length.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import ScoredWindow


class ComponentScores(NamedTuple):
    """What a component says of a window's targets.

    Attributes:
        log_probs: in nats, (B, T) float64, -inf where a probability is zero.
        known: where there is a distribution at all, (B, T) bool; elsewhere ``log_probs`` is without meaning, and the
            component's weight goes to the model.
    """

    log_probs: Tensor
    known: Tensor


class Component(ABC):
    """A distribution that is mixed with a model's; it reads the windows of one stream in order, from the first."""

    @abstractmethod
    def score(self, window: ScoredWindow) -> ComponentScores:
        """The probability of each target, given what stands before it, and nothing of what follows."""
