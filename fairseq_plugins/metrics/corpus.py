"""Metrics of a corpus as functions of sums over its sentences, and paired bootstrap.

Shapes: S statistics of a sentence, N sentences, R runs of a system, K bootstrap samples.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Literal, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from fairseq_plugins.metrics.rouge import (
    DEFAULT_SETTINGS,
    NUM_BOOTSTRAP_SAMPLES,
    SEED,
    Rouge,
    RougeSettings,
    check_tokens,
    without_escapes,
)
from fairseq_plugins.metrics.rouge import METRICS as ROUGE_METRICS
from fairseq_plugins.options import UserError


class CorpusMetric(ABC):
    """A metric that is a function of the sum of statistics of each sentence.

    So bootstrap samples and tuning add statistics instead of scoring texts again.
    """

    @abstractmethod
    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        """Statistics of a sentence, (S,) float64."""

    @abstractmethod
    def score(self, total: np.ndarray) -> float:
        """The metric, 0 to 100, of sentences whose statistics sum to ``total`` (S,)."""


LetterCase = Literal["kept", "ignored"]
"""Whether "The" is another word than "the"."""


class SacrebleuMetric(CorpusMetric):
    """BLEU or chrF as sacreBLEU computes it."""

    def __init__(self, metric: Metric):
        self._metric = metric

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        (counts,) = self._metric._extract_corpus_statistics([hypothesis], [[reference]])
        return np.array(counts, dtype=np.float64)

    def score(self, total: np.ndarray) -> float:
        return float(self._metric._compute_score_from_stats(total.tolist()).score)


class RougeMean(CorpusMetric):
    """Mean F1 of one of ROUGE's metrics. The statistics are its sum and the number of sentences. Case is ignored.

    Args:
        name: of the metric.
        settings: of ROUGE.
        escapes: whether the escapes of the Moses tokeniser are undone; otherwise ROUGE counts their letters.
    """

    def __init__(
        self,
        name: str,
        *,
        settings: RougeSettings = DEFAULT_SETTINGS,
        escapes: Literal["undone", "kept"] = "undone",
    ):
        self.name = name
        self._rouge = Rouge(settings, [name])
        self._escapes = escapes

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        if self._escapes == "undone":
            hypothesis, reference = without_escapes(hypothesis), without_escapes(reference)
        scores = self._rouge.score(hypothesis, [reference])
        return np.array([scores[self.name].fmeasure, 1.0])

    def score(self, total: np.ndarray) -> float:
        f1, num_sentences = total.tolist()
        return 100 * f1 / num_sentences if num_sentences else 0.0


def bleu_of_text(*, case: LetterCase = "kept", language: str = "", force: bool = False) -> BLEU:
    """BLEU of raw text with sacreBLEU's tokeniser for the language: WMT's for most, characters for Chinese.

    Args:
        case: whether it counts.
        language: its code.
        force: do not warn about text that looks tokenised.

    Raises:
        UserError: if the tokeniser is not installed.
    """
    try:
        return BLEU(lowercase=case == "ignored", force=force, trg_lang=language)
    except RuntimeError as error:
        raise UserError(
            f"BLEU of text in {language} needs a tokeniser that is not installed: pip install 'sacrebleu[{language}]'"
        ) from error


CORPUS_METRICS: Dict[str, Callable[..., CorpusMetric]] = {
    "bleu": lambda **text: SacrebleuMetric(bleu_of_text(**text, force=True)),
    "chrf": lambda case="kept", **_: SacrebleuMetric(CHRF(lowercase=case == "ignored")),
    **{name: lambda name=name, **_: RougeMean(name) for name in ROUGE_METRICS},
}
"""Factories of metrics of tokenised or raw text, by name; for ``case`` and ``language`` see :func:`bleu_of_text`."""

SACREBLEU_METRICS = ("bleu", "chrf")
"""Metrics of translations; tables always show both."""

TITLES = {"bleu": "BLEU", "chrf": "chrF", **ROUGE_METRICS}
"""Names in tables and pictures."""


def check_script(metric: str, references: Iterable[str], *, flag: str) -> None:
    """Check that a metric knows the script of references. ROUGE knows only words of a-z and 0-9.

    Args:
        metric: a name of :data:`CORPUS_METRICS`.
        references: a sentence each; only read for ROUGE.
        flag: that chooses the metric.

    Raises:
        UserError: with the first such line.
    """
    if metric in ROUGE_METRICS:
        texts = [[without_escapes(reference)] for reference in references]
        check_tokens(texts, DEFAULT_SETTINGS, remedy=f"take {flag} bleu or chrf")


# Paired bootstrap (Koehn 2004) of systems that were trained several times.

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


def bootstrap_scores(metric: CorpusMetric, runs: Sequence[Sequence[str]], references: Sequence[str]) -> np.ndarray:
    """The mean score of a system's texts on all sentences, and on each of K samples of them, (1 + K).

    Args:
        metric: to compute.
        runs: R texts of N lines.
        references: N lines.
    """
    statistics = [
        np.stack([metric.statistics(*pair) for pair in zip(lines, references, strict=True)]) for lines in runs
    ]
    return bootstrap_means(metric.score, statistics)


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
