"""Unigram cache: how often a word stands among the last ones (Kuhn & De Mori 1990).

Shapes: B rows, T window length, W window of the cache.
"""

import torch

from fairseq_plugins.evaluation.scored_windows import ScoredWindow
from fairseq_plugins.evaluation.test_time.component import Component, ComponentScores
from fairseq_plugins.evaluation.test_time.recent_tokens import RecentValues, chunks


class UnigramCache(Component):
    """p(w) = count of w among the last W words of the row, over their number; a row's first word is one of them.

    Args:
        window: W.
    """

    def __init__(self, *, window: int):
        assert window >= 1
        self.window = window
        self._words = RecentValues(window)
        self._num_read = 0

    def score(self, window: ScoredWindow) -> ComponentScores:
        target = window.target
        if self._num_read == 0:
            self._words.extend(window.inputs[:, :1])
            self._num_read = 1
        num_kept = min(self.window, self._num_read)
        words = self._words.extend(target)
        counts = torch.empty_like(target)
        for tokens, seen, band in chunks(
            num_rows=target.size(0),
            num_tokens=target.size(1),
            num_kept=num_kept,
            length=self.window,
            device=target.device,
        ):
            counts[:, tokens] = (words[:, None, seen].eq(target[:, tokens, None]) & band).sum(dim=-1)
        num_words = self._num_read + torch.arange(target.size(1), device=target.device)
        self._num_read += target.size(1)
        log_probs = (counts.double() / num_words.clamp(max=self.window)).log()
        return ComponentScores(log_probs, torch.ones_like(target, dtype=torch.bool))
