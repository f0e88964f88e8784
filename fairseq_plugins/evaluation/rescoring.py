"""Rescoring of n-best lists by a log-linear model: features, and weights that are tuned to a metric.

Shapes: N sentences, K candidates of the longest list, F features, S statistics of a metric.
"""

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from scipy.optimize import minimize

from fairseq_plugins.console import progress
from fairseq_plugins.evaluation.nbest import NBestLists
from fairseq_plugins.evaluation.raw_text import encode_lines
from fairseq_plugins.evaluation.scoring import score_pairs, score_sequences
from fairseq_plugins.evaluation.translation_scores import (
    SUBWORD_MARKS,
    Comparison,
    check_blank_references,
    check_raw_references,
    compare,
    detokenize,
)
from fairseq_plugins.files import read_json
from fairseq_plugins.metrics.corpus import CORPUS_METRICS, SACREBLEU_METRICS, CorpusMetric, LetterCase
from fairseq_plugins.metrics.rouge import METRICS as ROUGE_METRICS
from fairseq_plugins.metrics.rouge import NO_HYPOTHESIS_HAS_THIS, UNKNOWN_REFERENCE
from fairseq_plugins.models.sliding_context import stream_model
from fairseq_plugins.options import UserError


def marked_kind(texts: Sequence[str]) -> Optional[str]:
    """fairseq's name for the kind of subwords in texts, or None. sentencepiece marks most texts."""
    num_marked = {kind: sum(pattern.search(text) is not None for text in texts) for pattern, _, kind in SUBWORD_MARKS}
    if 2 * num_marked["sentencepiece"] > len(texts):
        return "sentencepiece"
    return "subword_nmt" if num_marked["subword_nmt"] else None


# Features: the list's own score, the length, and log-probabilities by models.

LIST_SCORE, LENGTH = "list", "length"
"""Names of the features that every list has."""


@dataclass(frozen=True, kw_only=True)
class CandidateFeatures:
    """Features of all candidates.

    Attributes:
        names: of the F features: the list's score, the number of tokens, then one for each model.
        values: (N, K, F) float64, 0 where there is no candidate.
        is_candidate: (N, K).
    """

    names: List[str]
    values: np.ndarray
    is_candidate: np.ndarray

    def weighted_sums(self, weights: np.ndarray) -> np.ndarray:
        """The score of every candidate, (N, K), -inf where there is none, by weights (F,)."""
        return np.where(self.is_candidate, self.values @ weights, -np.inf)


def candidate_features(
    lists: NBestLists,
    models: Mapping[str, BaseFairseqModel],
    *,
    max_tokens: int = 4096,
) -> CandidateFeatures:
    """Score all candidates by language models and encoder-decoders, each candidate from a fresh state.

    The lists hold tokens of the models between white space, and sources if there are encoder-decoders. Raises UserError
    if a score of the lists is not finite, a model is of another kind, an encoder-decoder has no sources, a text is too
    long for a model, which names the sentence before anything is scored, or an NLL is not finite.
    """
    scores = [candidate.score for found in lists.candidates for candidate in found]
    for score, (number, text) in zip(scores, lists.numbered):
        if not math.isfinite(score):
            raise UserError(
                f"sentence {number} of the lists, from 0: the candidate that begins with '{text[:30]}' has the score "
                f"{score}: leave the candidate out"
            )
    _check_models(models, lists)
    _check_lengths(models, lists)
    sizes = [len(found) for found in lists.candidates]
    is_candidate = np.arange(max(sizes)) < np.array(sizes)[:, None]
    names = [LIST_SCORE, LENGTH, *models]
    values = np.zeros((*is_candidate.shape, len(names)))
    columns = [scores, [len(text.split()) for text in lists.texts]]
    columns += [_log_probs(model, lists, max_tokens=max_tokens) for model in models.values()]
    values[is_candidate] = np.array(columns, dtype=np.float64).T
    return CandidateFeatures(names=names, values=values, is_candidate=is_candidate)


def unknown_share(lists: NBestLists, model: Any) -> float:
    """Share of unknown words in the candidates, or in the sources of an encoder-decoder if it is higher."""

    def share(texts: Sequence[str], dictionary: Dictionary) -> float:
        tokens = [token for text in texts for token in text.split()]
        return sum(dictionary.index(token) == dictionary.unk() for token in tokens) / max(1, len(tokens))

    of_candidates = share(lists.texts, model.decoder.dictionary)
    if not isinstance(model, FairseqEncoderDecoderModel):
        return of_candidates
    return max(of_candidates, share(lists.sources, model.encoder.dictionary))


def _check_models(models: Mapping[str, BaseFairseqModel], lists: NBestLists) -> None:
    """Check that the models can score the lists."""
    for name, model in models.items():
        if not isinstance(model, (FairseqLanguageModel, FairseqEncoderDecoderModel)):
            raise UserError(
                f"{name}: a {type(model).__name__} scores no text: give language models and encoder-decoders"
            )
        if isinstance(model, FairseqEncoderDecoderModel) and not lists.sources:
            raise UserError(f"{name}: an encoder-decoder reads the sources: give them with --source")


def _check_lengths(models: Mapping[str, BaseFairseqModel], lists: NBestLists) -> None:
    """Check that no text is too long for an encoder-decoder."""
    for name, model in models.items():
        if isinstance(model, FairseqEncoderDecoderModel):
            source_limit, limit = model.max_positions()
            _check_longest(enumerate(lists.sources), source_limit, reader=name, kind="source", remedy="shorten it")
            _check_longest(lists.numbered, limit, reader=name, kind="candidate", remedy="leave the candidate out")


def _check_longest(texts: Iterable[Tuple[int, str]], longest: float, *, reader: str, kind: str, remedy: str) -> None:
    """Check the lengths of texts, each with the number of its sentence."""
    for number, text in texts:
        length = len(text.split()) + 1
        if length > longest:
            raise UserError(
                f"sentence {number} of the lists, from 0: the {kind} that begins with '{text[:30]}' has {length:,} "
                f"tokens with the end mark, and {reader} reads at most {longest:,}: {remedy} or take another model"
            )


def _log_probs(model: BaseFairseqModel, lists: NBestLists, **options: Any) -> List[float]:
    """Log-probabilities of all candidates in nats. Equal candidates are scored once."""
    if isinstance(model, FairseqLanguageModel):
        texts = list(dict.fromkeys(lists.texts))
        sequences = encode_lines(texts, model.decoder.dictionary)
        scored = dict(zip(texts, score_sequences([stream_model(model)], sequences, **options)))
        return [-float(scored[text].sum()) for text in lists.texts]
    assert isinstance(model, FairseqEncoderDecoderModel)
    pairs = list(dict.fromkeys(lists.numbered))
    sources = encode_lines([lists.sources[number] for number, _ in pairs], model.encoder.dictionary)
    targets = encode_lines([text for _, text in pairs], model.decoder.dictionary)
    totals: Dict[Tuple[int, str], float] = {}
    for batch in score_pairs(model, sources, targets, **options):
        totals.update((pairs[number], -float(nll)) for number, nll in zip(batch.numbers, batch.nll.sum(1)))
    return [totals[pair] for pair in lists.numbered]


# Tuning (Och 2003). The metric is piecewise constant in the weights, so the search cannot use gradients. It is
# Nelder and Mead's, by scipy, from several starts, on features that are divided by their standard deviations.


@dataclass(frozen=True, kw_only=True)
class TuningSet(CandidateFeatures):
    """Features of candidates, and their statistics (N, K, S) of the metric to maximise."""

    statistics: np.ndarray
    metric: CorpusMetric

    def score(self, weights: np.ndarray) -> float:
        """The metric of the candidates that weights (F,) choose."""
        chosen = self.weighted_sums(weights).argmax(1)
        return self.metric.score(self.statistics[np.arange(len(chosen)), chosen].sum(0))


ENOUGH = 1e-3
"""Differences of the metric, 0 to 100, below which a search ends."""


def tune_weights(data: TuningSet, *, num_restarts: int, seed: int) -> np.ndarray:
    """Weights (F,) of the highest metric that was found; their magnitudes sum to 1.

    The first search starts from the first feature alone, so the result is never worse than the order of the list. The
    second starts from equal weights, and ``num_restarts`` others from random ones.
    """
    deviations = _deviations(data)
    scaled = replace(data, values=data.values / deviations)
    num_features = len(deviations)
    generator = np.random.default_rng(seed)
    starts = [np.eye(num_features)[0], np.ones(num_features), *generator.normal(size=(num_restarts, num_features))]
    found = []
    for start in progress(starts, unit="start"):
        simplex = np.vstack([start, start + np.eye(num_features)])
        options = {"initial_simplex": simplex, "xatol": 1e-4, "fatol": ENOUGH}
        found.append(minimize(lambda weights: -scaled.score(weights), start, method="Nelder-Mead", options=options).x)
    best = max(found, key=scaled.score) / deviations
    return best / np.abs(best).sum()


def _deviations(data: CandidateFeatures) -> np.ndarray:
    """Standard deviation of each feature among the candidates of a sentence, (F,); 1 if it is only rounding error."""
    counts = data.is_candidate.sum(1)[:, None]
    means = data.values.sum(1) / counts
    centered = np.where(data.is_candidate[..., None], data.values - means[:, None], 0)
    deviations = np.sqrt((centered**2).sum((0, 1)) / counts.sum())
    return np.where(deviations > 1e-9 * np.abs(data.values).max((0, 1)), deviations, 1)


# Candidates as plain text, and tuning to their references.

_GLUED_END = re.compile(r"\w[.!?]$")


@dataclass(eq=False)
class CandidateTexts:
    """Candidates with subwords joined, if they have marks, and tokenisation undone, if a language is given.

    Attributes:
        reference: a file of references; None takes the references of the lists, if there are any.
        language: of the tokenisation to undo, or None.
        data: folder of the corpus with this tokenisation, or None for Moses.
        case: whether case counts in metrics.
    """

    lists: NBestLists
    reference: Optional[Path]
    language: Optional[str]
    case: LetterCase
    data: Optional[Path] = None

    @cached_property
    def references(self) -> List[str]:
        """A sentence each, or empty; read at the first access.

        Raises UserError if the numbers of references and sentences differ, the lists have other references, one is
        blank, or the references are raw text and the candidates are not detokenised.
        """
        return self._of_lists() if self.reference is None else self._read(self.reference)

    def chosen(self, indices: Sequence[int]) -> List[str]:
        """The candidate of each sentence at the given index of its list, as text."""
        return self._readable([found[index].text for found, index in zip(self.lists.candidates, indices)])

    def gains(self, chosen: Sequence[int], *, metric: str) -> List[Comparison]:
        """Compare the candidates ``chosen`` by index with the decoder's, by a metric and those printed beside it."""
        metrics = SACREBLEU_METRICS if metric in SACREBLEU_METRICS else ROUGE_METRICS
        before, after = self.chosen(self.lists.first), self.chosen(chosen)
        return compare(after, before, self.references, metrics=metrics, case=self.case, language=self.language or "")

    def tune(self, features: CandidateFeatures, *, metric: str, num_restarts: int, seed: int) -> np.ndarray:
        """Weights (F,) that maximise a metric of :data:`CORPUS_METRICS`; see :func:`tune_weights`."""
        computed = CORPUS_METRICS[metric](case=self.case, language=self.language or "")
        statistics = np.zeros((*features.is_candidate.shape, len(computed.statistics("", ""))))  # (N, K, S)
        lists = progress(self.lists.candidates, desc=metric, unit="list")
        for row, found, reference in zip(statistics, lists, self.references):
            texts = self._readable([candidate.text for candidate in found])
            row[: len(found)] = [computed.statistics(text, reference) for text in texts]
        data = TuningSet(**vars(features), statistics=statistics, metric=computed)
        return tune_weights(data, num_restarts=num_restarts, seed=seed)

    def _read(self, reference: Path) -> List[str]:
        """Raw references from a file."""
        lines, name = self.lists.lines_of(reference), str(reference)
        check_blank_references({name: lines})
        targets = self._readable(self.lists.references)
        check_raw_references(targets, {name: lines}, name="the list")
        if self.language is None and _are_raw(lines) and not _are_raw(self.chosen([0] * len(lines))):
            raise UserError(
                f"{name} is raw text and the lists are tokenised, so words before punctuation would not match: "
                "give --target-lang LANGUAGE"
            )
        return lines

    def _of_lists(self) -> List[str]:
        """References of the lists. Their unknown words must not match unknown words of hypotheses."""
        check_blank_references({"the references of the lists": self.lists.references})
        words = [text.replace(UNKNOWN_REFERENCE, NO_HYPOTHESIS_HAS_THIS) for text in self.lists.references]
        return self._readable(words)

    def _readable(self, texts: Sequence[str]) -> List[str]:
        words = [post_process(text, self._kind) if self._kind else text for text in texts]
        return detokenize(words, language=self.language, data=self.data) if self.language else words

    @cached_property
    def _kind(self) -> Optional[str]:
        return marked_kind(self.lists.texts)


def _are_raw(lines: Sequence[str]) -> bool:
    """Whether most lines with a final mark have no blank before it."""
    ends = [line.rstrip() for line in lines if line.rstrip().endswith((".", "!", "?"))]
    return 2 * sum(_GLUED_END.search(line) is not None for line in ends) > len(ends)


# The file of tuned weights.


def read_weights(path: Path) -> Dict[str, Any]:
    """Read a file of ``fairseq-plugins rescore --tune``.

    It has the ``metric`` that was maximised, the ``weights`` of the list's score, the length and the checkpoints by
    their paths, and the ``digests`` of the checkpoints. Raises OSError if the file is missing, and UserError if it is
    of another form.
    """
    wrong = "holds no weights: write it with --tune"
    found = read_json(path, {"metric": str, "weights": dict, "digests": dict}, wrong=wrong)
    weights = found["weights"]
    are_numbers = all(isinstance(weight, (int, float)) and math.isfinite(weight) for weight in weights.values())
    is_complete = weights.keys() == {LIST_SCORE, LENGTH, *found["digests"]}
    if found["metric"] not in CORPUS_METRICS or not (are_numbers and is_complete):
        raise UserError(f"{path} {wrong}")
    return found


def weights_of_models(tuned: Mapping[str, Any], given: Mapping[str, str]) -> List[float]:
    """The tuned weights of the list's score, the length and the checkpoints, which may have moved since.

    The digests of the checkpoints are ``given`` by their paths. Raises UserError if they are not the checkpoints that
    the weights were tuned for.
    """
    weights, digests = tuned["weights"], tuned["digests"]
    by_digest = {digest: weights[path] for path, digest in digests.items()}
    if strangers := [path for path, digest in given.items() if digest not in by_digest]:
        raise UserError(f"{strangers[0]} is none of the models that the weights were tuned for: {', '.join(digests)}")
    if missing := [path for path, digest in digests.items() if digest not in given.values()]:
        raise UserError(f"the weights were tuned for {', '.join(digests)}: --path lacks {missing[0]}")
    return [weights[LIST_SCORE], weights[LENGTH], *(by_digest[digest] for digest in given.values())]
