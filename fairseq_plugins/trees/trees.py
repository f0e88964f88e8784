"""Constituency trees: reading and writing, cleaning, linearisation for language models, and bracket scores.

No function recurses, so that trees may have any depth.
"""

import re
from collections import Counter
from dataclasses import astuple, dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Collection, Iterable, Iterator, List, Literal, Optional, Sequence, Tuple, Union

from fairseq_plugins.options import UserError

TOP_LABELS = frozenset(["", "S1", "TOP", "ROOT"])
"""Labels of a node above the sentence, which is not a constituent."""

_TOKEN = re.compile(r"[()]|[^\s()]+")


class EmptyTree(UserError):
    """A tree, or a constituent of it, has no word. Parsers write such trees when they fail."""


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A node with all nodes below it; ``str`` gives the bracketed tree.

    The label is the constituent's, or the word's part of speech; it may be empty at the top. A constituent
    has children, from left to right, and no word.
    """

    label: str
    children: Tuple["Tree", ...] = ()
    word: Optional[str] = None

    def __str__(self) -> str:
        pieces = []
        for visit, node in walk(self):
            if visit is Visit.OPEN:
                pieces.append(f" ({node.label}")
            elif visit is Visit.WORD:
                pieces.append(f" ({node.label} {node.word})")
            else:
                pieces.append(")")
        return "".join(pieces)[1:]


class Visit(Enum):
    """Event of a walk."""

    OPEN = "open"
    WORD = "word"
    CLOSE = "close"


def walk(tree: Tree) -> Iterator[Tuple[Visit, Tree]]:
    """Visit nodes depth first: a constituent is opened and, after its children, closed. A word is visited once."""
    planned = [(_first_visit(tree), tree)]
    while planned:
        visit, node = planned.pop()
        yield visit, node
        if visit is Visit.OPEN:
            planned.append((Visit.CLOSE, node))
            planned.extend((_first_visit(child), child) for child in reversed(node.children))


def _first_visit(node: Tree) -> Visit:
    return Visit.OPEN if node.word is None else Visit.WORD


def leaves(tree: Tree) -> List[Tree]:
    """The nodes with a word, from left to right."""
    return [node for visit, node in walk(tree) if visit is Visit.WORD]


def read_tree(text: str, *, name: str = "tree") -> Tree:
    """The tree of a text; ``name`` is its origin in messages.

    Raises EmptyTree if there is no tree, or one with a constituent without a word. Raises UserError unless the text is
    exactly one tree.
    """
    try:
        trees = list(_trees([text]))
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from error
    if len(trees) != 1:
        raise (UserError if trees else EmptyTree)(f"{name}: {len(trees)} trees where one is expected")
    return trees[0]


def read_trees(lines: Iterable[str], *, name: str) -> Iterator[Tree]:
    """Trees of a text, which may span lines; ``name`` is its origin in messages.

    Raises UserError with the line, if brackets or words do not form a tree.
    """
    num_lines = 0

    def counted() -> Iterator[str]:
        nonlocal num_lines
        for line in lines:
            num_lines += 1
            yield line

    try:
        yield from _trees(counted())
    except ValueError as error:
        raise UserError(f"{name}, line {num_lines}: {error}") from error


@dataclass
class _OpenNode:
    """A node whose end is not read yet. The label is None until it is read."""

    children: List[Tree]
    label: Optional[str] = None
    word: Optional[str] = None


def _trees(texts: Iterable[str]) -> Iterator[Tree]:
    """Trees of texts, which may span several. The path holds the nodes from the top to the current one."""
    path: List[_OpenNode] = []
    for token in chain.from_iterable(map(_TOKEN.findall, texts)):
        node = path[-1] if path else None
        if token == "(":
            if node is not None:
                node.label = node.label or ""
                if node.word is not None:
                    raise UserError(f"'(' after the word {node.word}, which is not in brackets with its part of speech")
            path.append(_OpenNode([]))
        elif node is None:
            raise UserError("')' without '('" if token == ")" else f"'{token}' outside of brackets")
        elif token == ")":
            if node.word is None and not node.children:
                raise EmptyTree(f"({node.label or ''}) is empty: there is neither a word nor a constituent in it")
            path.pop()
            tree = Tree(node.label or "", tuple(node.children), node.word)
            if not path:
                yield tree
            else:
                path[-1].children.append(tree)
        elif node.label is None:
            node.label = token
        elif node.word is not None or node.children:
            raise UserError(f"'{token}' has no part of speech: a word is written (TAG {token})")
        else:
            node.word = token
    if path:
        raise UserError(f"the text ends within a tree: {len(path)} ) missing")


# Cleaning: treebanks have traces, function tags and indices, which parsers do not produce.

EMPTY_ELEMENT = "-NONE-"
"""Part of speech of a trace, which has no word."""

TOP = "S1"
"""Label of the node above a cleaned sentence."""


def plain_label(label: str) -> str:
    """A label up to its first ``-``, ``=`` or ``|``: without function tags and indices, and ``A`` of ``A|B``.

    A label that begins with such a mark, such as ``-LRB-``, does not change.
    """
    return re.split("[-=|]", label, maxsplit=1)[0] or label


def clean_tree(tree: Tree) -> Optional[Tree]:
    """A tree under a top node ``S1``, or None if no word is left.

    Empty elements and constituents without words are removed. Labels become plain. A constituent whose only child has
    the same label is replaced by that child.
    """
    levels: List[List[Tree]] = [[]]
    for visit, node in walk(tree):
        if visit is Visit.OPEN:
            levels.append([])
        elif visit is Visit.WORD:
            if node.label != EMPTY_ELEMENT:
                levels[-1].append(Tree(plain_label(node.label), word=node.word))
        else:
            children = levels.pop()
            label = plain_label(node.label)
            repeats = len(children) == 1 and children[0].word is None and children[0].label == label
            levels[-1].extend(children if repeats or not children else [Tree(label, tuple(children))])
    if not levels[0]:
        return None
    (cleaned,) = levels[0]
    is_top = cleaned.word is None and cleaned.label in TOP_LABELS
    return Tree(TOP, cleaned.children if is_top else (cleaned,))


# Linearisation.

KEPT_WORDS = "kept_words.txt"
"""Name of the file of kept words beside the gold trees of a prepared corpus."""

_ENDINGS = {"ing": "ing", "ed": "ed", "ly": "ly", "s": "s", "est": "est", "er": "ER", "ion": "ion", "ory": "ory"}


class Linearisation:
    """Trees as sequences of symbols for a language model (Choe & Charniak 2016, *Parsing as Language Modeling*).

    A constituent labelled L opens with the symbol ``(L`` and closes with ``)L``. Parts of speech and the top node are
    left out. Words that are frequent in the training text, ``kept_words``, are in lower case. Other words become their
    unknown class.
    """

    def __init__(self, kept_words: Collection[str]):
        self._kept_words = frozenset(kept_words)

    def symbols(self, tree: Tree) -> List[str]:
        """The symbols of a tree, without an end mark."""
        symbols = []
        for visit, node in walk(tree):
            if visit is Visit.WORD:
                assert node.word is not None
                symbols.append(self.word(node.word))
            elif node is not tree or node.label not in TOP_LABELS:
                bracket = "(" if visit is Visit.OPEN else ")"
                symbols.append(f"{bracket}{plain_label(node.label)}")
        return symbols

    def word(self, word: str) -> str:
        """A word in lower case if it is frequent, or its unknown class."""
        lowered = word.lower()
        return lowered if lowered in self._kept_words else unknown_class(word)


def unknown_class(word: str) -> str:
    """The class of a rare word, by its spelling: ``<unk>``, ``<cunking>``, ``<unkn>`` and 23 others."""
    first, last = word[0], word[-1]
    core = "cunk" if first.isupper() else "unk"
    if first.isdigit() and last.isdigit():
        return f"<{core}n>"
    if len(word) <= 3:
        return f"<{core}>"
    for ending, name in _ENDINGS.items():
        if word.endswith(ending):
            return f"<{core}{name}>"
    if word.startswith("un"):
        return "<ununk>"
    if word.endswith("al"):
        return f"<{core}al>"
    return f"<{core}{next((character for character in word[:-1] if character in '-.'), '')}>"


def count_words(trees: Iterable[Tree]) -> Counter[str]:
    """Occurrences of the words of trees in lower case."""
    counts: Counter[str] = Counter()
    for tree in trees:
        counts.update(str(node.word).lower() for node in leaves(tree))
    return counts


def frequent_words(counts: Counter[str], *, min_count: int) -> List[str]:
    """Words with at least ``min_count`` occurrences, by descending frequency, then alphabetically."""
    kept = [(-count, word) for word, count in counts.items() if count >= min_count]
    return [word for _, word in sorted(kept)]


def read_linearisation(data_dir: Union[str, Path]) -> Linearisation:
    """The linearisation of a prepared corpus. Raises UserError if the folder has no list of kept words."""
    path = Path(data_dir) / "trees" / KEPT_WORDS
    if not path.is_file():
        raise UserError(
            f"{path} does not exist, so it is unknown how trees become symbols: give the directory that "
            "data-prep/wsj/prepare.sh wrote"
        )
    return Linearisation(path.read_text(encoding="utf-8").split())


# Labelled bracketing recall, precision and F1, by the rules of EVALB with the parameters of Collins. A bracket is a
# constituent: its label and the words that it spans. Words with their parts of speech, the top node and punctuation do
# not count. Brackets are counted over the corpus.

PUNCTUATION = frozenset([",", ":", "``", "''", "."])
"""Parts of speech whose words are deleted."""

EQUAL_LABELS = {"PRT": "ADVP"}
"""Labels that count as another label."""

PunctuationOf = Literal["gold", "own"]
"""The parts of speech that define the punctuation of a scored tree: the gold tree's, or its own as in EVALB."""

Bracket = Tuple[str, int, int]
"""Label, first word, and the word after the last."""


class NotComparable(UserError):
    """A tree does not have the words of the gold tree, or has only punctuation. EVALB leaves such trees out."""


@dataclass(frozen=True)
class BracketCounts:
    """Bracket counts of one tree or of many.

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
        """Share of the gold trees' brackets that are matched; 0 if there are none."""
        return self.matched / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        """Share of the scored trees' brackets that are matched; 0 if there are none."""
        return self.matched / self.test if self.test else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of recall and precision; 1 if no tree has a bracket, 0 if there is no tree."""
        if self.gold + self.test:
            return 2 * self.matched / (self.gold + self.test)
        return 1.0 if self.num_trees else 0.0

    @property
    def exact(self) -> float:
        """Share of the trees that match exactly; 0 if there are none."""
        return self.num_exact / self.num_trees if self.num_trees else 0.0


def total(counts: Iterable[BracketCounts]) -> BracketCounts:
    """Sum of counts."""
    sums: List[int] = [sum(column) for column in zip(*map(astuple, counts))]
    return BracketCounts(*sums)


class GoldTree:
    """A gold tree, cleaned or not, against which other trees are scored."""

    def __init__(self, tree: Tree, *, punctuation_of: PunctuationOf = "gold"):
        words = _words(tree)
        self._words = [node.word for node in words]
        self._is_deleted = _is_punctuation(words)
        self._brackets = _brackets(tree, is_deleted=self._is_deleted)
        self._punctuation_of = punctuation_of

    def score(self, tree: Tree) -> BracketCounts:
        """Counts of a tree.

        Raises NotComparable if its words are not those of the gold tree, or all are punctuation. With punctuation of
        its own, only the other words are compared.
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
    """The brackets over the words that are not deleted; empty ones are left out."""
    brackets: Counter[Bracket] = Counter()
    starts: List[int] = []
    position = 0
    deleted = iter(is_deleted)
    for visit, node in walk(tree):
        if visit is Visit.OPEN:
            starts.append(position)
        elif visit is Visit.WORD:
            position += node.label != EMPTY_ELEMENT and not next(deleted)
        else:
            start = starts.pop()
            label = plain_label(node.label)
            if start < position and label not in TOP_LABELS:
                brackets[EQUAL_LABELS.get(label, label), start, position] += 1
    return brackets
