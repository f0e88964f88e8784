"""Labelled bracketing recall, precision and F1, by the rules of EVALB with the parameters of Collins.

The top node and punctuation are deleted, and PRT counts as ADVP. A bracket is a constituent: its label and the words
that it spans. A word with its part of speech is none. Brackets are counted over the corpus.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Iterable, List, Literal, Sequence, Tuple

from fairseq_plugins.trees.cleaning import EMPTY_ELEMENT, plain_label
from fairseq_plugins.trees.tree import TOP_LABELS, Tree, Visit, leaves, walk

PUNCTUATION = frozenset([",", ":", "``", "''", "."])
"""Parts of speech whose words are deleted."""

EQUAL_LABELS = {"PRT": "ADVP"}
"""Labels that count as another."""

PunctuationOf = Literal["gold", "own"]
"""Whose parts of speech tell the punctuation of a tree that is scored: the gold tree's, or its own as in EVALB."""

Bracket = Tuple[str, int, int]


class NotComparable(ValueError):
    """A tree is left out as EVALB does it, because its words are not those of the gold tree or all are punctuation."""


@dataclass(frozen=True)
class BracketCounts:
    """Brackets of one tree, or of many.

    Attributes:
        matched: brackets in both.
        gold: brackets of the gold trees.
        test: brackets of the trees that are scored.
        num_trees: how many trees.
        num_exact: trees with the brackets of their gold tree and no others.
    """

    matched: int = 0
    gold: int = 0
    test: int = 0
    num_trees: int = 0
    num_exact: int = 0

    @property
    def recall(self) -> float:
        """Part of the gold trees' brackets that are matched; 0 where there are none."""
        return self.matched / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        """Part of the scored trees' brackets that are matched; 0 where there are none."""
        return self.matched / self.test if self.test else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of recall and precision; 1 where no tree has a bracket, 0 where there is no tree."""
        if self.gold + self.test:
            return 2 * self.matched / (self.gold + self.test)
        return 1.0 if self.num_trees else 0.0

    @property
    def exact(self) -> float:
        """Part of the trees that match exactly; 0 where there are none."""
        return self.num_exact / self.num_trees if self.num_trees else 0.0


def total(counts: Iterable[BracketCounts]) -> BracketCounts:
    """Counts of all trees together."""
    given = list(counts)
    return BracketCounts(
        matched=sum(one.matched for one in given),
        gold=sum(one.gold for one in given),
        test=sum(one.test for one in given),
        num_trees=sum(one.num_trees for one in given),
        num_exact=sum(one.num_exact for one in given),
    )


class GoldTree:
    """A gold tree that others are scored against.

    Args:
        tree: the gold tree, cleaned or not.
        punctuation_of: whose parts of speech tell the punctuation; ``own`` is the rule of EVALB.
    """

    def __init__(self, tree: Tree, *, punctuation_of: PunctuationOf = "gold"):
        words = _words(tree)
        self._words = [node.word for node in words]
        self._is_deleted = _is_punctuation(words)
        self._brackets = _brackets(tree, is_deleted=self._is_deleted)
        self._punctuation_of = punctuation_of

    def score(self, tree: Tree) -> BracketCounts:
        """Counts of a tree.

        Raises:
            NotComparable: if its words, or what is left of them without punctuation, are not those of the gold tree, or
                if nothing is left.
        """
        words = _words(tree)
        if self._punctuation_of == "gold":
            _check_words([node.word for node in words], self._words)
            is_deleted = self._is_deleted
        else:
            is_deleted = _is_punctuation(words)
            _check_words(_kept([node.word for node in words], is_deleted), _kept(self._words, self._is_deleted))
        if all(is_deleted):
            raise NotComparable("there is no word but punctuation")
        brackets = _brackets(tree, is_deleted=is_deleted)
        matched = (brackets & self._brackets).total()
        gold, test = self._brackets.total(), brackets.total()
        return BracketCounts(matched, gold, test, num_trees=1, num_exact=int(matched == gold == test))


def _words(tree: Tree) -> List[Tree]:
    return [node for node in leaves(tree) if node.label != EMPTY_ELEMENT]


def _is_punctuation(words: Sequence[Tree]) -> List[bool]:
    return [node.label in PUNCTUATION for node in words]


def _kept(words: Sequence[object], is_deleted: Sequence[bool]) -> List[object]:
    return [word for word, deleted in zip(words, is_deleted) if not deleted]


def _check_words(words: Sequence[object], gold: Sequence[object]) -> None:
    if len(words) != len(gold):
        raise NotComparable(f"{len(words)} words where the gold tree has {len(gold)}")
    for number, (word, gold_word) in enumerate(zip(words, gold), start=1):
        if word != gold_word:
            raise NotComparable(f"word {number} is {word} where the gold tree has {gold_word}")


def _brackets(tree: Tree, *, is_deleted: Sequence[bool]) -> Counter[Bracket]:
    """The brackets over what is left of the words; those without a word are left out."""
    brackets: Counter[Bracket] = Counter()
    starts: List[int] = []
    place = 0
    deleted = iter(is_deleted)
    for visit, node in walk(tree):
        if visit is Visit.OPEN:
            starts.append(place)
        elif visit is Visit.WORD:
            place += node.label != EMPTY_ELEMENT and not next(deleted)
        else:
            start = starts.pop()
            label = plain_label(node.label)
            if start < place and label not in TOP_LABELS:
                brackets[EQUAL_LABELS.get(label, label), start, place] += 1
    return brackets
