"""Candidates chosen by a weighted sum of features, and weights that are tuned to a metric of the chosen texts.

The search is Och's (2003): along a line of weights the choice of each sentence changes at a few points, so that the
best point of the line is found exactly; lines are the features' and random ones, from several starts.

Shapes: N sentences, K candidates of the longest list, F features, S statistics of the metric.
"""

from dataclasses import dataclass
from typing import List, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_plugins.scoring.corpus_metrics import CorpusMetric

NARROWEST = 1e-6
"""Stretches of a line that are shorter, in units of the features' deviations, are not stopped at."""

ENOUGH = 1e-3
"""A gain of the metric, 0 to 100, below which a search ends."""


def weighted_sums(values: np.ndarray, is_candidate: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The score of every candidate, (N, K), -inf where is none; features are (N, K, F), weights (F,)."""
    return np.where(is_candidate, values @ weights, -np.inf)


@dataclass(frozen=True, kw_only=True)
class TuningSet:
    """Candidates whose metric is known.

    Attributes:
        values: features, (N, K, F).
        is_candidate: (N, K).
        statistics: of the metric, (N, K, S).
        metric: what is made as high as can be.
    """

    values: np.ndarray
    is_candidate: np.ndarray
    statistics: np.ndarray
    metric: CorpusMetric

    def score(self, weights: np.ndarray) -> float:
        """The metric of the candidates that weights (F,) choose."""
        chosen = weighted_sums(self.values, self.is_candidate, weights).argmax(1)
        return self.metric.score(self.statistics[np.arange(len(chosen)), chosen].sum(0))

    def best_step(self, weights: np.ndarray, direction: np.ndarray) -> Tuple[float, float]:
        """How far from ``weights`` along ``direction`` the metric is highest, and its value there.

        Where nothing is better than the weights, the step is 0.
        """
        places, totals = self._changes(weights, direction)
        ends = np.concatenate([places[:1] - 1, places, places[-1:] + 1]) if len(places) else np.array([-1.0, 1.0])
        middles, widths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
        step, best = 0.0, self.score(weights)
        for middle, width, total in zip(middles, widths, totals):
            score = self.metric.score(total) if width > NARROWEST else -np.inf
            if score > best:
                step, best = float(middle), score
        return step, best

    def _changes(self, weights: np.ndarray, direction: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Where on the line choices change, (n,) in order, and the summed statistics between, (n + 1, S)."""
        heights = weighted_sums(self.values, self.is_candidate, weights)
        slopes = np.where(self.is_candidate, self.values @ direction, np.inf)
        rows = np.arange(len(slopes))
        lowest = slopes == slopes.min(1, keepdims=True)
        chosen = np.where(lowest, heights, -np.inf).argmax(1)  # far to the left
        total = self.statistics[rows, chosen].sum(0)
        places: List[np.ndarray] = []
        changes: List[np.ndarray] = []
        while len(rows):
            rise = slopes[rows] - slopes[rows, chosen][:, None]
            is_steeper = self.is_candidate[rows] & (rise > 0)
            gap = heights[rows, chosen][:, None] - heights[rows]
            crossings = np.divide(gap, rise, out=np.full_like(rise, np.inf), where=is_steeper)
            place = crossings.min(1)
            later = np.where(crossings == place[:, None], slopes[rows], -np.inf).argmax(1)
            goes_on = np.isfinite(place)
            rows, chosen, later = rows[goes_on], chosen[goes_on], later[goes_on]
            places.append(place[goes_on])
            changes.append(self.statistics[rows, later] - self.statistics[rows, chosen])
            chosen = later
        order = np.argsort(np.concatenate(places), kind="stable")
        sums = np.vstack([total, total + np.concatenate(changes)[order].cumsum(0)])
        return np.concatenate(places)[order], sums


def tune_weights(data: TuningSet, *, num_restarts: int, seed: int, show_progress: bool = False) -> np.ndarray:
    """Weights (F,) of the highest metric that was found; their magnitudes sum to 1.

    The search starts from the first feature alone, so that its order is the least that is reached, from all features
    alike, and ``num_restarts`` times at random.
    """
    deviations = _deviations(data)
    scaled = TuningSet(
        values=data.values / deviations, is_candidate=data.is_candidate, statistics=data.statistics, metric=data.metric
    )
    num_features = len(deviations)
    generator = np.random.default_rng(seed)
    starts = [np.eye(num_features)[0], np.ones(num_features), *generator.normal(size=(num_restarts, num_features))]
    found = [_climb(scaled, start, generator) for start in tqdm(starts, unit="start", disable=not show_progress)]
    best = max(found, key=scaled.score) / deviations
    return best / np.abs(best).sum()


def _deviations(data: TuningSet) -> np.ndarray:
    """How much each feature differs among the candidates of a sentence, (F,); 1 where it does not."""
    counts = data.is_candidate.sum(1)[:, None]
    means = data.values.sum(1) / counts
    centred = np.where(data.is_candidate[..., None], data.values - means[:, None], 0)
    deviations = np.sqrt((centred**2).sum((0, 1)) / counts.sum())
    return np.where(deviations > 0, deviations, 1)


def _climb(data: TuningSet, weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Line searches along every feature and as many random directions, until a round gains too little."""
    best = data.score(weights)
    while True:
        before = best
        for direction in (*np.eye(len(weights)), *generator.normal(size=(len(weights), len(weights)))):
            step, _ = data.best_step(weights, direction)
            moved = weights + step * direction
            score = data.score(moved)
            if score > best and moved.any():
                weights, best = moved / np.abs(moved).max(), score
        if best - before < ENOUGH:
            return weights
