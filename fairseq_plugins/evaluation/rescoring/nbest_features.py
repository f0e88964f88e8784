"""What a log-linear model reads of candidates: the list's own score, the length, and log-probabilities of models.

Shapes: N sentences, K candidates of the longest list, F features.
"""

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel

from fairseq_plugins.evaluation.rescoring.candidate_lists import NBestLists
from fairseq_plugins.evaluation.scored_pairs import score_pairs
from fairseq_plugins.evaluation.scored_sequences import longest_sequence, score_sequences
from fairseq_plugins.evaluation.text.encoded_lines import encode_lines

LIST_SCORE, LENGTH = "list", "length"
"""Features that every list has."""


@dataclass(frozen=True)
class CandidateFeatures:
    """Features of all candidates.

    Attributes:
        names: of the features, F: the list's score, the number of tokens, then the models'.
        values: (N, K, F) float64, 0 where there is no candidate.
        is_candidate: (N, K).
        unknown_shares: of the candidates' tokens, those that a model does not know, by its name.
    """

    names: List[str]
    values: np.ndarray
    is_candidate: np.ndarray
    unknown_shares: Dict[str, float]


def candidate_features(
    lists: NBestLists,
    models: Mapping[str, BaseFairseqModel],
    *,
    max_tokens: int = 4096,
    device: str = "cpu",
    show_progress: bool = False,
) -> CandidateFeatures:
    """Score all candidates by models, each candidate from a fresh state.

    Args:
        lists: with sources, if there are encoder-decoders; texts are split at white space into what the models read.
        models: language models and encoder-decoders by their names, on ``device``.
        max_tokens: of a batch.
        device: where the models are.
        show_progress: draw bars.

    Raises:
        ValueError: if a model is of another kind, an encoder-decoder has no sources, a text is too long for a model,
            which names the sentence before anything is scored, or an NLL is not finite.
    """
    _check_models(models, lists)
    _check_lengths(models, lists)
    sizes = [len(found) for found in lists.candidates]
    is_candidate = np.arange(max(sizes)) < np.array(sizes)[:, None]
    names = [LIST_SCORE, LENGTH, *models]
    values = np.zeros((*is_candidate.shape, len(names)))
    flat = [candidate for found in lists.candidates for candidate in found]
    columns = [[candidate.score for candidate in flat], [len(candidate.text.split()) for candidate in flat]]
    options = dict(max_tokens=max_tokens, device=device, show_progress=show_progress)
    columns += [_log_probs(model, lists, **options) for model in models.values()]
    values[is_candidate] = np.array(columns, dtype=np.float64).T
    unknown_shares = {name: _unknown_share(lists.texts, model) for name, model in models.items()}
    return CandidateFeatures(names=names, values=values, is_candidate=is_candidate, unknown_shares=unknown_shares)


def _unknown_share(texts: Sequence[str], model: Any) -> float:
    """Of the tokens of candidates, those that are unknown to a model."""
    dictionary: Dictionary = model.decoder.dictionary
    tokens = [token for text in texts for token in text.split()]
    return sum(dictionary.index(token) == dictionary.unk() for token in tokens) / max(1, len(tokens))


def _check_models(models: Mapping[str, BaseFairseqModel], lists: NBestLists) -> None:
    """Refuse what cannot be scored before anything is."""
    for name, model in models.items():
        if not isinstance(model, (FairseqLanguageModel, FairseqEncoderDecoderModel)):
            raise ValueError(
                f"{name}: a {type(model).__name__} scores no text: give language models and encoder-decoders"
            )
        if isinstance(model, FairseqEncoderDecoderModel) and not lists.sources:
            raise ValueError(f"{name}: an encoder-decoder reads the sources: give them with --source")


def _check_lengths(models: Mapping[str, BaseFairseqModel], lists: NBestLists) -> None:
    """Refuse texts that a model cannot read before anything is scored."""
    candidates = [(number, candidate.text) for number, found in enumerate(lists.candidates) for candidate in found]
    for name, model in models.items():
        if isinstance(model, FairseqEncoderDecoderModel):
            source_limit, limit = model.max_positions()
            _check_longest(enumerate(lists.sources), source_limit, reader=name, kind="source", remedy="shorten it")
        else:
            assert isinstance(model, FairseqLanguageModel)
            limit = longest_sequence([model])
        _check_longest(candidates, limit, reader=name, kind="candidate", remedy="leave the candidate out")


def _check_longest(texts: Iterable[Tuple[int, str]], longest: float, *, reader: str, kind: str, remedy: str) -> None:
    """Refuse the first text, with the number of its sentence, that has more tokens than a reader takes."""
    for number, text in texts:
        length = len(text.split()) + 1
        if length > longest:
            raise ValueError(
                f"sentence {number} of the lists, from 0: the {kind} that begins with '{text[:30]}' has {length:,} "
                f"tokens with the end mark, and {reader} reads at most {longest:,}: {remedy} or take another model"
            )


def _log_probs(model: BaseFairseqModel, lists: NBestLists, **options: Any) -> List[float]:
    """In nats, of every candidate; one that is there twice is scored once."""
    if isinstance(model, FairseqLanguageModel):
        texts = list(dict.fromkeys(lists.texts))
        sequences = encode_lines(texts, model.decoder.dictionary)
        scored = dict(zip(texts, score_sequences([model], sequences, **options)))
        return [-scored[text].nll for text in lists.texts]
    assert isinstance(model, FairseqEncoderDecoderModel)
    numbered = enumerate(lists.candidates)
    asked: List[Tuple[int, str]] = [(number, candidate.text) for number, found in numbered for candidate in found]
    pairs = list(dict.fromkeys(asked))
    sources = encode_lines([lists.sources[number] for number, _ in pairs], model.encoder.dictionary)
    targets = encode_lines([text for _, text in pairs], model.decoder.dictionary)
    totals: Dict[Tuple[int, str], float] = {}
    for batch in score_pairs(model, sources, targets, **options):
        totals.update((pairs[place], -float(nll)) for place, nll in zip(batch.numbers, batch.nll.sum(1)))
    return [totals[pair] for pair in asked]
