"""What a language model can choose among: the candidates of each sentence, read, compared and held against gold trees.

Shapes: n symbols of a tree with the end mark.
"""

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.text_lines import encode_lines
from fairseq_plugins.trees.bracket_scores import BracketCounts, GoldTree, NotComparable, PunctuationOf
from fairseq_plugins.trees.gold_trees import GoldSentence
from fairseq_plugins.trees.linearisation import Linearisation
from fairseq_plugins.trees.nbest_lists import Candidate, NBestLists


@dataclass(frozen=True)
class Hypothesis:
    """Candidates that are one tree to a language model, and the brackets of the first of them.

    Attributes:
        candidate: the first.
        place: its place in the parser's list, from 1.
        symbols: (n,) int32 with the end mark.
        counts: against the gold tree; None if they cannot be compared.
    """

    candidate: Candidate
    place: int
    symbols: Tensor
    counts: Optional[BracketCounts]


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


def pair_lists(lists: NBestLists, gold: Sequence[GoldSentence]) -> Dict[str, List[Candidate]]:
    """The candidates of each gold sentence by its name, in the order of the gold sentences.

    Sentences with names have the list of that name, or none. For sentences without names, lists in the order of
    sentences are taken one by one, and lists in any order by the sentence's number, counted from 0.

    Raises:
        ValueError: if lists and sentences do not belong together.
    """
    candidates = lists.candidates
    if all(sentence.name is None for sentence in gold) and lists.order == "of sentences":
        if len(candidates) != len(gold):
            raise ValueError(f"{len(candidates)} lists for {len(gold)} gold trees: give the lists of these sentences")
        return candidates
    names = [str(number) if sentence.name is None else sentence.name for number, sentence in enumerate(gold)]
    foreign = next(iter(candidates.keys() - names), None)
    if foreign is not None:
        remedy = "" if gold[0].name is not None else f"; lines are counted from 0 to {len(gold) - 1}"
        raise ValueError(f"there is a list for sentence {foreign}, which the gold trees do not have{remedy}")
    return {name: candidates.get(name, []) for name in names}


def read_sentences(
    lists: NBestLists,
    gold: Sequence[GoldSentence],
    *,
    linearisation: Linearisation,
    dictionary: Dictionary,
    punctuation_of: PunctuationOf = "gold",
    show_progress: bool = False,
) -> List[Sentence]:
    """The hypotheses of all sentences; of candidates with the same symbols the first is kept.

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
            tree = candidate.tree()
            symbols = " ".join(linearisation.symbols(tree))
            if symbols in hypotheses:
                continue
            try:
                counts = gold_tree.score(tree)
            except NotComparable:
                counts = None
            (encoded,) = encode_lines([symbols], dictionary).sequences
            hypotheses[symbols] = Hypothesis(candidate, place, encoded.int(), counts)
        sentences.append(Sentence(name, list(hypotheses.values()), num_candidates=len(candidates)))
    if not any(hypothesis.counts for sentence in sentences for hypothesis in sentence.hypotheses):
        raise ValueError("no candidate has the words of its gold tree: give lists and gold trees of the same sentences")
    return sentences
