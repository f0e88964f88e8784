"""The texts of n-best lists as a reader sees them, and weights that are tuned to their references.

Shapes: N sentences, K candidates of the longest list, F features, S statistics of a metric.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
from fairseq.data.data_utils import post_process
from tqdm import tqdm

from fairseq_plugins.evaluation.rescoring.candidate_lists import NBestLists, marked_kind
from fairseq_plugins.evaluation.rescoring.log_linear import TuningSet, tune_weights
from fairseq_plugins.evaluation.rescoring.nbest_features import CandidateFeatures
from fairseq_plugins.evaluation.translation.raw_references import check_blank_references, check_raw_references
from fairseq_plugins.evaluation.translation.translations import detokenize
from fairseq_plugins.scoring.corpus_metrics import CORPUS_METRICS, CorpusMetric, LetterCase
from fairseq_plugins.scoring.unknown_words import NO_HYPOTHESIS_HAS_THIS, UNKNOWN_REFERENCE

_GLUED_END = re.compile(r"\w[.!?]$")


class CandidateTexts:
    """Candidates whose subwords are joined, where they have marks, and whose tokenisation is undone where asked.

    Args:
        lists: the candidates.
        reference: a file of references, or None for those of the lists, which may be none.
        language: of the Moses tokenisation that is undone; None undoes none.
        case: whether it counts in metrics.
    """

    def __init__(self, lists: NBestLists, *, reference: Optional[Path], language: Optional[str], case: LetterCase):
        self.lists = lists
        self._kind = marked_kind(lists.texts)
        self._language = language
        self._reference = reference
        self.case: LetterCase = case

    @cached_property
    def references(self) -> List[str]:
        """A sentence each, or empty; read when they are first asked for.

        Raises:
            ValueError: if there are not as many references as sentences, they are not those of the lists, where these
                have any, one is blank, or they are raw text and the candidates tokens that stay so.
        """
        return self._of_lists() if self._reference is None else self._read(self._reference)

    def chosen(self, places: Sequence[int]) -> List[str]:
        """The candidate of each sentence at its place in the list."""
        return self._readable([found[place].text for found, place in zip(self.lists.candidates, places)])

    def judge(self, metric: str) -> CorpusMetric:
        """What computes a metric of the texts, by its name in :data:`CORPUS_METRICS`."""
        return CORPUS_METRICS[metric](case=self.case, language=self._language or "")

    def tune(
        self,
        features: CandidateFeatures,
        *,
        metric: str,
        num_restarts: int,
        seed: int,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Weights (F,) of features whose choice has the highest metric; see :func:`tune_weights`.

        ``metric`` is a name of :data:`CORPUS_METRICS`.
        """
        judge = self.judge(metric)
        statistics = np.zeros((*features.is_candidate.shape, len(judge.statistics("", ""))))  # (N, K, S)
        lists = tqdm(self.lists.candidates, desc=metric, unit="list", disable=not show_progress)
        for row, found, reference in zip(statistics, lists, self.references):
            texts = self._readable([candidate.text for candidate in found])
            row[: len(found)] = [judge.statistics(text, reference) for text in texts]
        data = TuningSet(
            values=features.values, is_candidate=features.is_candidate, statistics=statistics, metric=judge
        )
        return tune_weights(data, num_restarts=num_restarts, seed=seed, show_progress=show_progress)

    def _read(self, reference: Path) -> List[str]:
        """Raw references from a file."""
        lines, name = self.lists.lines_of(reference), str(reference)
        check_blank_references(lines, name=name)
        targets = self._joined(self.lists.references)
        check_raw_references(targets, lines, name="the list", reference_name=name)
        if self._language is None and _are_raw(lines) and not _are_raw(self.chosen([0] * len(lines))):
            raise ValueError(
                f"{name} is raw text, and the lists are tokens, so that hardly a word before a full stop would match: "
                "give --target-lang LANGUAGE"
            )
        return lines

    def _of_lists(self) -> List[str]:
        """References of the lists, whose unknown words match nothing."""
        check_blank_references(self.lists.references, name="the references of the lists")
        words = [text.replace(UNKNOWN_REFERENCE, NO_HYPOTHESIS_HAS_THIS) for text in self.lists.references]
        return self._readable(words)

    def _readable(self, texts: Sequence[str]) -> List[str]:
        words = self._joined(texts)
        return detokenize(words, language=self._language) if self._language else words

    def _joined(self, texts: Sequence[str]) -> List[str]:
        return [post_process(text, self._kind) if self._kind else text for text in texts]


def _are_raw(lines: Sequence[str]) -> bool:
    """Whether most of those that end as a sentence does have no blank before the mark."""
    ends = [line.rstrip() for line in lines if line.rstrip().endswith((".", "!", "?"))]
    return 2 * sum(_GLUED_END.search(line) is not None for line in ends) > len(ends)
