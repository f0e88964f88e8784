"""Paired bootstrap (Koehn 2004) of systems that were trained several times.

Shapes: S statistics of a sentence, N sentences, R runs of a system, K samples.
"""

from dataclasses import dataclass
from typing import Callable, List, Sequence

import numpy as np

NUM_BOOTSTRAP_SAMPLES = 1000
SEED = 12345
SAMPLES_AT_ONCE = 50
"""Samples whose weights, (samples, N), are in memory together."""


@dataclass(frozen=True)
class Difference:
    """Difference between a system and a baseline.

    Attributes:
        value: difference of the means over the runs, in the unit of the scores.
        interval: half the width of its 95 % confidence interval.
        p: probability of a difference at least as large, in either direction, between equal systems.
    """

    value: float
    interval: float
    p: float


def bootstrap_means(score: Callable[[np.ndarray], float], runs: Sequence[np.ndarray]) -> np.ndarray:
    """The mean score of a system's runs on all sentences, and on each of K samples of them, (1 + K).

    Sentences are drawn with replacement, each with the outputs of all runs. The samples are the same for all systems.

    Args:
        score: of sentences whose statistics sum to (S,).
        runs: R statistics of sentences, (N, S).
    """
    num_sentences = len(runs[0])
    count = np.random.default_rng(SEED).multinomial
    chances = np.full(num_sentences, 1 / num_sentences)
    totals: List[List[np.ndarray]] = [[statistics.sum(axis=0)] for statistics in runs]
    for first in range(0, NUM_BOOTSTRAP_SAMPLES, SAMPLES_AT_ONCE):
        num_samples = min(SAMPLES_AT_ONCE, NUM_BOOTSTRAP_SAMPLES - first)
        weights = count(num_sentences, chances, size=num_samples).astype(np.float64)
        for run_totals, statistics in zip(totals, runs):
            run_totals.extend(weights @ statistics)
    return np.mean([[score(total) for total in run_totals] for run_totals in totals], axis=0)


def paired_difference(system: np.ndarray, baseline: np.ndarray) -> Difference:
    """Compare two systems by their :func:`bootstrap_means`, (1 + K) each.

    The interval covers the choice of sentences, not the choice of seeds. p is two-sided. sacreBLEU's bootstrap compares
    |d| - mean |d| with the difference, which is one-sided where differences are clear: its p is then half as large.
    """
    whole, *samples = system - baseline
    low, high = np.percentile(samples, [2.5, 97.5])
    # centered samples are distributed as the differences of equal systems (Riezler & Maxwell 2005)
    num_as_large = int((np.abs(samples - np.mean(samples)) >= abs(whole)).sum())
    return Difference(float(whole), float(high - low) / 2, (num_as_large + 1) / (len(samples) + 1))
