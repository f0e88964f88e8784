"""Log-probabilities of a whole stream that were computed before, such as those of an n-gram model.

Shapes: n tokens, B rows, T window length.
"""

import torch
from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import ScoredWindow
from fairseq_plugins.evaluation.test_time.component import Component, ComponentScores


class KnownLogProbs(Component):
    """The log-probability of every token of the stream; those of the rows' first tokens are left out.

    Args:
        log_probs: in nats, (n,).
        num_rows: B.
    """

    def __init__(self, log_probs: Tensor, *, num_rows: int):
        row_length = log_probs.numel() // num_rows
        self._rows = log_probs[: num_rows * row_length].double().view(num_rows, row_length)[:, 1:]
        self._num_read = 0

    def score(self, window: ScoredWindow) -> ComponentScores:
        end = self._num_read + window.target.size(1)
        log_probs = self._rows[:, self._num_read : end].to(window.target.device)
        self._num_read = end
        return ComponentScores(log_probs, torch.ones_like(window.target, dtype=torch.bool))
