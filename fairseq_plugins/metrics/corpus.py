"""Metrics of a corpus as functions of sums over its sentences.

Shapes: S statistics of a sentence, N sentences, R runs of a system, K bootstrap samples.
"""

from abc import ABC, abstractmethod
from typing import Callable, Dict, Iterable, Literal, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from fairseq_plugins.metrics.bootstrap import bootstrap_means
from fairseq_plugins.metrics.rouge import DEFAULT_SETTINGS, Rouge, RougeSettings, check_tokens, without_escapes
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
