"""Choosing among the trees that a parser proposes, by language models (Choe & Charniak 2016; Takase et al. 2018).

The score of a tree is the sum of -log p over its symbols and the end mark, each tree from a fresh state. The lowest
wins. Neither the parser's score nor the length is part of it.

Shapes: n symbols of a tree with the end mark, H hypotheses of a sentence.
"""

from dataclasses import dataclass
from typing import Iterator, List, Literal, Optional, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.ensemble import average_nll
from fairseq_plugins.evaluation.scored_sequences import ScoredSequence, score_sequences
from fairseq_plugins.trees.bracket_scores import BracketCounts, total
from fairseq_plugins.trees.hypotheses import Sentence

Ensemble = Literal["sum", "mean"]
"""How several models become one: the sum of their log-probabilities, or the mean of their probabilities of a symbol."""

SYMBOLS_AT_A_TIME = 1 << 20
"""Symbols whose scores are in memory one by one."""


@dataclass(frozen=True)
class SystemScore:
    """What a way to choose is worth.

    Attributes:
        counts: of all sentences that could be scored.
        skipped: names of the others: the chosen tree cannot be compared with the gold tree, or there is no candidate.
    """

    counts: BracketCounts
    skipped: List[str]


@dataclass(frozen=True)
class ModelScores:
    """NLL of the hypotheses of each sentence in nats, (H,) float64.

    Attributes:
        alone: for each model by itself, in their order.
        together: for all of them as one.
    """

    alone: List[List[Tensor]]
    together: List[Tensor]


def score_hypotheses(
    models: Sequence[FairseqLanguageModel],
    sentences: Sequence[Sentence],
    *,
    ensemble: Ensemble = "sum",
    max_tokens: int = 4096,
    device: str = "cpu",
    show_progress: bool = False,
) -> ModelScores:
    """Score every hypothesis from a fresh state.

    Args:
        models: language models on ``device`` with the vocabulary that the sentences were read with.
        sentences: from ``read_sentences``.
        ensemble: what several models are together.
        max_tokens, device: see :func:`~fairseq_plugins.evaluation.scored_sequences.score_sequences`.
        show_progress: draw a bar.

    Raises:
        ValueError: if a batch would have no token, or an NLL is not finite.
    """
    scores = ModelScores(alone=[[] for _ in models], together=[])
    num_symbols = sum(_num_symbols(sentence) for sentence in sentences)
    with tqdm(total=num_symbols, desc="scoring", unit="symbol", disable=not show_progress) as bar:
        for chunk in reranking_chunks(sentences):
            sequences = [hypothesis.symbols.long() for sentence in chunk for hypothesis in sentence.hypotheses]
            sizes = [len(sentence.hypotheses) for sentence in chunk]
            scored = [score_sequences([model], sequences, max_tokens=max_tokens, device=device) for model in models]
            for total_nll, of_model in zip(scores.alone, scored):
                total_nll.extend(_nll(of_model).split(sizes))
            scores.together.extend(_together(scored, ensemble=ensemble).split(sizes))
            bar.update(sum(map(len, sequences)))
    return scores


def _num_symbols(sentence: Sentence) -> int:
    return sum(len(hypothesis.symbols) for hypothesis in sentence.hypotheses)


def reranking_chunks(sentences: Sequence[Sentence]) -> Iterator[List[Sentence]]:
    """Sentences with so many symbols at least, the last with fewer."""
    chunk: List[Sentence] = []
    size = 0
    for sentence in sentences:
        chunk.append(sentence)
        size += _num_symbols(sentence)
        if size >= SYMBOLS_AT_A_TIME:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _nll(scored: Sequence[ScoredSequence]) -> Tensor:
    return torch.tensor([sequence.nll for sequence in scored], dtype=torch.float64)


def _together(scored: Sequence[Sequence[ScoredSequence]], *, ensemble: Ensemble) -> Tensor:
    if ensemble == "sum":
        return torch.stack([_nll(of_model) for of_model in scored]).sum(dim=0)
    nll = [average_nll([one.token_nll for one in of_models]).sum() for of_models in zip(*scored)]
    return torch.stack(nll) if nll else torch.zeros(0, dtype=torch.float64)


def best_by_parser(sentences: Sequence[Sentence]) -> List[Optional[int]]:
    """The index of the parser's best hypothesis of each sentence; None where there is none."""
    return [0 if sentence.hypotheses else None for sentence in sentences]


def best_by_models(nll: Sequence[Tensor]) -> List[Optional[int]]:
    """The index of the hypothesis with the lowest NLL of each sentence, the first of equals; ``nll`` holds (H,)."""
    return [int(one.argmin()) if len(one) else None for one in nll]


def best_by_gold(sentences: Sequence[Sentence]) -> List[Optional[int]]:
    """The oracle: the index of the hypothesis with the highest F1 of each sentence, the first of equals."""
    choices: List[Optional[int]] = []
    for sentence in sentences:
        f1 = [-1.0 if one.counts is None else one.counts.f1 for one in sentence.hypotheses]
        choices.append(f1.index(max(f1)) if f1 else None)
    return choices


def score_choices(sentences: Sequence[Sentence], choices: Sequence[Optional[int]]) -> SystemScore:
    """Bracket scores of the chosen hypotheses.

    Args:
        sentences: all sentences.
        choices: an index for each.
    """
    chosen = [
        None if choice is None else sentence.hypotheses[choice].counts
        for sentence, choice in zip(sentences, choices, strict=True)
    ]
    skipped = [sentence.name for sentence, counts in zip(sentences, chosen) if counts is None]
    return SystemScore(total(counts for counts in chosen if counts is not None), skipped)
