"""What a language model can choose among: the candidates of each sentence, read, compared and held against gold trees.

Shapes: n symbols of a tree with the end mark.
"""

from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.text_lines import encode_lines
from fairseq_plugins.trees.bracket_scores import BracketCounts, GoldTree, NotComparable, PunctuationOf
from fairseq_plugins.trees.gold_sentences import GoldSentence
from fairseq_plugins.trees.linearisation import Linearisation
from fairseq_plugins.trees.list_pairing import pair_lists
from fairseq_plugins.trees.parse_lists import CandidateTree, ParseLists
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


@dataclass(frozen=True)
class Sentence:
    """What can be chosen for a sentence.

    Attributes:
        name: of the sentence.
        hypotheses: all different, the parser's best first; may be empty.
        num_candidates: of the parser.
    """

    name: str
    hypotheses: List[Hypothesis]
    num_candidates: int


def read_sentences(
    lists: ParseLists,
    gold: Sequence[GoldSentence],
    *,
    linearisation: Linearisation,
    dictionary: Dictionary,
    punctuation_of: PunctuationOf = "gold",
    show_progress: bool = False,
) -> List[Sentence]:
    """The hypotheses of all sentences; of candidates with the same symbols the first is kept.

    A candidate that is an empty tree, as parsers write where they fail, is left out.

    Args:
        lists: of a parser.
        gold: the sentences with their trees.
        linearisation: that the models were trained with.
        dictionary: of the models.
        punctuation_of: see :mod:`~fairseq_plugins.trees.bracket_scores`.
        show_progress: draw a bar.

    Raises:
        ValueError: if a candidate is no tree, or lists and sentences do not belong together, such as where no tree has
            the words of its gold tree.
    """
    paired = pair_lists(lists, gold)
    sentences = []
    bar = tqdm(zip(paired.items(), gold), "reading trees", len(gold), unit="sentence", disable=not show_progress)
    for (name, candidates), sentence in bar:
        gold_tree = GoldTree(sentence.tree, punctuation_of=punctuation_of)
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
            (encoded,) = encode_lines([symbols], dictionary).sequences
            hypotheses[symbols] = Hypothesis(candidate, place, encoded.int(), counts, best_counts=counts)
        sentences.append(Sentence(name, list(hypotheses.values()), num_candidates=len(candidates)))
    if not any(hypothesis.best_counts for sentence in sentences for hypothesis in sentence.hypotheses):
        raise ValueError("no candidate has the words of its gold tree: give lists and gold trees of the same sentences")
    return sentences


def _counts(gold_tree: GoldTree, tree: Tree) -> Optional[BracketCounts]:
    try:
        return gold_tree.score(tree)
    except NotComparable:
        return None


def _better(one: Optional[BracketCounts], other: Optional[BracketCounts]) -> Optional[BracketCounts]:
    """Those with the higher F1, the first of equals."""
    return max((counts for counts in (one, other) if counts is not None), key=lambda counts: counts.f1, default=None)
