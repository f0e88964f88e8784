"""Choosing one tree of each sentence, and what a way to choose is worth."""

from dataclasses import dataclass
from typing import List, Literal, Optional, Sequence

from torch import Tensor

from fairseq_plugins.trees.bracket_scores import BracketCounts, total
from fairseq_plugins.trees.sentences import Sentence

Counted = Literal["first", "best"]
"""Which candidate of a hypothesis is scored: the first, or for the oracle the best."""


@dataclass(frozen=True)
class SystemScore:
    """What a way to choose is worth.

    Attributes:
        of_sentences: brackets of each sentence's chosen tree; none of those skipped.
        skipped: names of sentences whose chosen tree cannot be compared with the gold tree, or that have no candidate.
    """

    of_sentences: List[BracketCounts]
    skipped: List[str]

    @property
    def counts(self) -> BracketCounts:
        """Brackets of all sentences together."""
        return total(self.of_sentences)


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
        f1 = [-1.0 if one.best_counts is None else one.best_counts.f1 for one in sentence.hypotheses]
        choices.append(f1.index(max(f1)) if f1 else None)
    return choices


def score_choices(
    sentences: Sequence[Sentence], choices: Sequence[Optional[int]], *, counted: Counted = "first"
) -> SystemScore:
    """Bracket scores of the chosen hypotheses.

    Args:
        sentences: all sentences.
        choices: an index for each.
        counted: the candidate of a hypothesis.
    """
    chosen: List[Optional[BracketCounts]] = []
    for sentence, choice in zip(sentences, choices, strict=True):
        hypothesis = None if choice is None else sentence.hypotheses[choice]
        if hypothesis is None:
            chosen.append(None)
        else:
            chosen.append(hypothesis.counts if counted == "first" else hypothesis.best_counts)
    skipped = [sentence.name for sentence, counts in zip(sentences, chosen) if counts is None]
    return SystemScore([counts or BracketCounts() for counts in chosen], skipped)
