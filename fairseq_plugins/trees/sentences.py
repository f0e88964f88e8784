"""Sentences with what a language model can choose among for each."""

from dataclasses import dataclass
from typing import List, Sequence

from fairseq.data import Dictionary
from tqdm import tqdm

from fairseq_plugins.trees.bracket_scores import GoldTree, PunctuationOf
from fairseq_plugins.trees.gold_sentences import GoldSentence
from fairseq_plugins.trees.hypotheses import Hypothesis, merge_candidates
from fairseq_plugins.trees.linearisation import Linearisation
from fairseq_plugins.trees.list_pairing import pair_lists
from fairseq_plugins.trees.parse_lists import ParseLists


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
    """The sentences of lists and gold trees, with their hypotheses.

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
        hypotheses = merge_candidates(candidates, gold_tree, linearisation=linearisation, dictionary=dictionary)
        sentences.append(Sentence(name, hypotheses, num_candidates=len(candidates)))
    if not any(hypothesis.best_counts for sentence in sentences for hypothesis in sentence.hypotheses):
        raise ValueError("no candidate has the words of its gold tree: give lists and gold trees of the same sentences")
    return sentences
