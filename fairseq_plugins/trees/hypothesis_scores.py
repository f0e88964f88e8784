"""Scores of the trees that a parser proposes, by language models (Choe & Charniak 2016; Takase et al. 2018).

The score of a tree is the sum of -log p over its symbols and the end mark, each tree from a fresh state. The lowest
wins. Neither the parser's score nor the length is part of it.

Shapes: n symbols of a tree with the end mark, H hypotheses of a sentence.
"""

from dataclasses import dataclass
from typing import Iterator, List, Literal, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.ensemble import average_nll
from fairseq_plugins.evaluation.scored_sequences import ScoredSequence, longest_sequence, score_sequences
from fairseq_plugins.trees.sentences import Sentence

Combination = Literal["sum", "mean"]
"""How several models become one: the sum of their log-probabilities, or the mean of their probabilities of a symbol."""

SYMBOLS_AT_A_TIME = 1 << 16
"""Symbols whose scores are in memory one by one."""


@dataclass(frozen=True)
class ModelScores:
    """NLL of the hypotheses of each sentence in nats, (H,) float64.

    Attributes:
        alone: for each model by itself, in their order.
        together: for each ensemble, in their order.
    """

    alone: List[List[Tensor]]
    together: List[List[Tensor]]


def score_hypotheses(
    models: Sequence[FairseqLanguageModel],
    sentences: Sequence[Sentence],
    *,
    ensembles: Sequence[Sequence[int]] = (),
    combination: Combination = "sum",
    max_tokens: int = 4096,
    device: str = "cpu",
    show_progress: bool = False,
) -> ModelScores:
    """Score every hypothesis from a fresh state.

    Args:
        models: language models on ``device`` with the vocabulary that the sentences were read with.
        sentences: from ``read_sentences``, which :func:`check_lengths` lets pass.
        ensembles: indices of the models of each.
        combination: what several models are together.
        max_tokens, device: see :func:`~fairseq_plugins.evaluation.scored_sequences.score_sequences`.
        show_progress: draw a bar.

    Raises:
        ValueError: if a batch would have no token, or an NLL is not finite.
    """
    scores = ModelScores(alone=[[] for _ in models], together=[[] for _ in ensembles])
    num_symbols = len(models) * sum(_num_symbols(sentence) for sentence in sentences)
    with tqdm(total=num_symbols, desc="scoring", unit="symbol", disable=not show_progress) as bar:
        for chunk in reranking_chunks(sentences):
            sequences = [hypothesis.symbols.long() for sentence in chunk for hypothesis in sentence.hypotheses]
            sizes = [len(sentence.hypotheses) for sentence in chunk]
            scored = []
            for model, nll in zip(models, scores.alone):
                scored.append(score_sequences([model], sequences, max_tokens=max_tokens, device=device))
                nll.extend(_nll(scored[-1]).split(sizes))
                bar.update(sum(map(len, sequences)))
            for members, nll in zip(ensembles, scores.together):
                nll.extend(_together([scored[index] for index in members], combination=combination).split(sizes))
    return scores


def check_lengths(models: Sequence[FairseqLanguageModel], sentences: Sequence[Sentence]) -> None:
    """Refuse hypotheses that a model cannot read.

    Raises:
        ValueError: for the first of them, with the name of its sentence.
    """
    longest = longest_sequence(models)
    for sentence in sentences:
        for hypothesis in sentence.hypotheses:
            length = len(hypothesis.symbols)
            if length > longest:
                raise ValueError(
                    f"sentence {sentence.name}: the candidate in {hypothesis.candidate.place} has {length:,} symbols "
                    f"with the end mark, and the models read at most {longest:,}: leave it out or take other models"
                )


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


def _together(scored: Sequence[Sequence[ScoredSequence]], *, combination: Combination) -> Tensor:
    if combination == "sum":
        return torch.stack([_nll(of_model) for of_model in scored]).sum(dim=0)
    nll = [average_nll([one.token_nll for one in of_models]).sum() for of_models in zip(*scored)]
    return torch.stack(nll) if nll else torch.zeros(0, dtype=torch.float64)
