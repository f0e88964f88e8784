"""Paired bootstrap (Koehn 2004) of systems that were trained several times.

Shapes: R runs of a system, N sentences, S statistics of a sentence, K samples.
"""

from dataclasses import dataclass
from typing import List, Sequence

import numpy as np

from fairseq_plugins.scoring.corpus_metrics import CorpusMetric

NUM_SAMPLES = 1000
SEED = 12345


@dataclass(frozen=True)
class Difference:
    """How far a system is above a baseline.

    Attributes:
        value: difference of the means over the runs, 0 to 100.
        interval: half the width of its 95 % confidence interval.
        p: chance of a difference at least as large, to either side, between equal systems.
    """

    value: float
    interval: float
    p: float


def paired_bootstrap(
    metric: CorpusMetric,
    system: Sequence[Sequence[str]],
    baseline: Sequence[Sequence[str]],
    references: Sequence[str],
) -> Difference:
    """Compare what the runs of two systems made of the same sentences.

    Sentences are drawn with replacement, and each brings what all runs of both systems made of it. So the interval says
    what other sentences would change; what other seeds would change it does not say. p counts differences to both sides
    and so is about twice that of sacreBLEU's test, which counts one.

    Args:
        metric: by which they are compared.
        system, baseline: R texts each, as long as the references.
        references: N lines.
    """
    count = np.random.default_rng(SEED).multinomial
    weights = count(len(references), np.full(len(references), 1 / len(references)), size=NUM_SAMPLES)
    draws = np.vstack([np.ones(len(references), dtype=weights.dtype), weights])
    whole, *samples = _mean_scores(metric, system, references, draws) - _mean_scores(
        metric, baseline, references, draws
    )
    low, high = np.percentile(samples, [2.5, 97.5])
    # a sample's distance from the mean of all samples is what equal systems would show (Riezler & Maxwell 2005)
    num_as_large = int((np.abs(samples - np.mean(samples)) >= abs(whole)).sum())
    return Difference(float(whole), float(high - low) / 2, (num_as_large + 1) / (NUM_SAMPLES + 1))


def _mean_scores(
    metric: CorpusMetric, runs: Sequence[Sequence[str]], references: Sequence[str], draws: np.ndarray
) -> np.ndarray:
    """The mean score of the runs on each sample, (K), whose sentences ``draws`` (K, N) counts."""
    scores: List[List[float]] = []
    for lines in runs:
        assert len(lines) == len(references)
        statistics = np.stack([metric.statistics(*pair) for pair in zip(lines, references)])
        scores.append([metric.score(total) for total in draws @ statistics])
    return np.mean(scores, axis=0)
