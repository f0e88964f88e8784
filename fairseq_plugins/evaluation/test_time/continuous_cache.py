"""Continuous cache: words that followed upon hidden states like the current one (Grave, Joulin & Usunier 2017).

Shapes: M models, B rows, T window length, W window of the cache, D width of a model's last layer.
"""

from typing import List

import torch
from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import ScoredWindow
from fairseq_plugins.evaluation.test_time.component import Component, ComponentScores
from fairseq_plugins.evaluation.test_time.recent_tokens import RecentValues, chunks

CACHE_STARTS = ("full", "first")
"""When a cache begins to speak: after more than W tokens, as in AWD-LSTM, or after the first."""


class ContinuousCache(Component):
    """p(w) proportional to sum_i [x_{i+1} = w] exp(theta h_i . h_t) over the last W pairs (h_i, x_{i+1}).

    h is the last layer's output without dropout. Each row has a cache of its own, and so has each model: their
    probabilities are averaged.

    Args:
        window: W.
        theta: flatness, at least 0.
        start: a value of :data:`CACHE_STARTS`.
    """

    def __init__(self, *, window: int, theta: float, start: str):
        assert window >= 1 and theta >= 0 and start in CACHE_STARTS
        self.window = window
        self.theta = theta
        self.num_needed = window + 1 if start == "full" else 1
        self._states: List[RecentValues] = []
        self._words = RecentValues(window)
        self._num_read = 0

    def score(self, window: ScoredWindow) -> ComponentScores:
        target = window.target
        num_kept = min(self.window, self._num_read)
        self._states = self._states or [RecentValues(self.window) for _ in window.states]
        states = [recent.extend(one.top.detach()) for recent, one in zip(self._states, window.states)]
        words = self._words.extend(target)
        log_probs = target.new_empty(target.shape, dtype=torch.float64)
        for tokens, seen, band in chunks(
            num_rows=target.size(0),
            num_tokens=target.size(1),
            num_kept=num_kept,
            length=self.window,
            device=target.device,
        ):
            others = words[:, None, seen] != target[:, tokens, None]
            current = slice(num_kept + tokens.start, num_kept + tokens.stop)
            probs = [self._shares(one[:, current], one[:, seen], band) for one in states]
            at_target = [one.masked_fill_(others, 0).sum(dim=-1).double() for one in probs]
            log_probs[:, tokens] = torch.stack(at_target).mean(dim=0).log()
        num_pairs = self._num_read + torch.arange(target.size(1), device=target.device)
        self._num_read += target.size(1)
        return ComponentScores(log_probs, (num_pairs >= self.num_needed).expand_as(target))

    def _shares(self, states: Tensor, seen: Tensor, band: Tensor) -> Tensor:
        """Softmax of theta h_i . h_t over what each token sees, (B, C, K); not a number where it sees nothing.

        Args:
            states: h_t, (B, C, D).
            seen: h_i, (B, K, D).
            band: which each sees, (C, K).
        """
        masks = states.new_zeros(band.shape).masked_fill_(~band, -torch.inf).expand(len(states), -1, -1)
        return torch.softmax(torch.baddbmm(masks, states, seen.transpose(1, 2), alpha=self.theta), dim=-1)
