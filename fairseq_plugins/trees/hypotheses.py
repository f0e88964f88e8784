"""Candidates of a parser that a language model can tell apart.

Shapes: n symbols of a tree with the end mark.
"""

from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.evaluation.text.encoded_lines import encode_lines
from fairseq_plugins.trees.bracket_scores import BracketCounts, GoldTree, NotComparable
from fairseq_plugins.trees.linearisation import Linearisation
from fairseq_plugins.trees.parse_lists import CandidateTree
from fairseq_plugins.trees.tree import EmptyTree, Tree


@dataclass(frozen=True)
class Hypothesis:
    """Candidates that are one tree to a language model; the first of them stands for all.

    Attributes:
        candidate: the first.
        place: its place in the parser's list, from 1.
        symbols: (n,) int32 with the end mark.
        counts: of the first against the gold tree; None if they cannot be compared.
        best_counts: of the candidate with the highest F1, which can be another where each tree tells its own
            punctuation, or words of a class differ; None if none can be compared.
    """

    candidate: CandidateTree
    place: int
    symbols: Tensor
    counts: Optional[BracketCounts]
    best_counts: Optional[BracketCounts]


def merge_candidates(
    candidates: Sequence[CandidateTree], gold_tree: GoldTree, *, linearisation: Linearisation, dictionary: Dictionary
) -> List[Hypothesis]:
    """The hypotheses of a sentence; of candidates with the same symbols the first is kept.

    A candidate that is an empty tree, as parsers write where they fail, is left out.

    Args:
        candidates: of a parser, its best first.
        gold_tree: what they are held against.
        linearisation: that the models were trained with.
        dictionary: of the models.

    Raises:
        ValueError: if a candidate is no tree.
    """
    hypotheses: Dict[str, Hypothesis] = {}
    for place, candidate in enumerate(candidates, start=1):
        try:
            tree = candidate.tree()
        except EmptyTree:
            continue
        symbols = " ".join(linearisation.symbols(tree))
        counts = _counts(gold_tree, tree)
        if symbols in hypotheses:
            same = hypotheses[symbols]
            hypotheses[symbols] = replace(same, best_counts=_better(same.best_counts, counts))
            continue
        (encoded,) = encode_lines([symbols], dictionary)
        hypotheses[symbols] = Hypothesis(candidate, place, encoded.int(), counts, best_counts=counts)
    return list(hypotheses.values())


def _counts(gold_tree: GoldTree, tree: Tree) -> Optional[BracketCounts]:
    try:
        return gold_tree.score(tree)
    except NotComparable:
        return None


def _better(one: Optional[BracketCounts], other: Optional[BracketCounts]) -> Optional[BracketCounts]:
    """Those with the higher F1, the first of equals."""
    return max((counts for counts in (one, other) if counts is not None), key=lambda counts: counts.f1, default=None)
