"""Paired bootstrap (Koehn 2004) of systems that were trained several times.

Shapes: R runs of a system, N sentences, S statistics of a sentence, K samples.
"""

from dataclasses import dataclass
from typing import Callable, List, Sequence

import numpy as np

from fairseq_plugins.scoring.corpus_metrics import CorpusMetric
from fairseq_plugins.scoring.rouge import NUM_BOOTSTRAP_SAMPLES, SEED

SAMPLES_AT_ONCE = 50
"""How often each sentence is drawn is held for so many samples."""


@dataclass(frozen=True)
class Difference:
    """How far a system is above a baseline.

    Attributes:
        value: difference of the means over the runs, in the unit of the scores.
        interval: half the width of its 95 % confidence interval.
        p: chance of a difference at least as large, to either side, between equal systems.
    """

    value: float
    interval: float
    p: float


def bootstrap_scores(metric: CorpusMetric, runs: Sequence[Sequence[str]], references: Sequence[str]) -> np.ndarray:
    """The mean score of a system's texts on all sentences, and on each of K samples of them, (1 + K).

    Args:
        metric: by which systems are compared.
        runs: R texts, each as long as the references.
        references: N lines.
    """
    statistics = [
        np.stack([metric.statistics(*pair) for pair in zip(lines, references, strict=True)]) for lines in runs
    ]
    return bootstrap_means(metric.score, statistics)


def bootstrap_means(score: Callable[[np.ndarray], float], runs: Sequence[np.ndarray]) -> np.ndarray:
    """The mean score of a system's runs on all sentences, and on each of K samples of them, (1 + K).

    Sentences are drawn with replacement, and each brings what all runs made of it. The samples are the same for every
    system.

    Args:
        score: of the sentences whose statistics sum to (S,).
        runs: R statistics of sentences, (N, S).
    """
    num_sentences = len(runs[0])
    count = np.random.default_rng(SEED).multinomial
    chances = np.full(num_sentences, 1 / num_sentences)
    totals: List[List[np.ndarray]] = [[statistics.sum(axis=0)] for statistics in runs]
    for first in range(0, NUM_BOOTSTRAP_SAMPLES, SAMPLES_AT_ONCE):
        num_samples = min(SAMPLES_AT_ONCE, NUM_BOOTSTRAP_SAMPLES - first)
        weights = count(num_sentences, chances, size=num_samples).astype(np.float64)
        for of_run, statistics in zip(totals, runs):
            of_run.extend(weights @ statistics)
    return np.mean([[score(total) for total in of_run] for of_run in totals], axis=0)


def paired_difference(system: np.ndarray, baseline: np.ndarray) -> Difference:
    """Compare two systems by their :func:`bootstrap_means`, (1 + K) each.

    The interval says what other sentences would change; what other seeds would change it does not say. p counts
    differences to both sides and so is larger than that of sacreBLEU's test, which looks at their size alone.
    """
    whole, *samples = system - baseline
    low, high = np.percentile(samples, [2.5, 97.5])
    # a sample's distance from the mean of all samples is what equal systems would show (Riezler & Maxwell 2005)
    num_as_large = int((np.abs(samples - np.mean(samples)) >= abs(whole)).sum())
    return Difference(float(whole), float(high - low) / 2, (num_as_large + 1) / (len(samples) + 1))
