"""Trees as sequences of symbols, which a language model reads (Choe & Charniak 2016, *Parsing as Language Modeling*).

A constituent labelled L opens with the symbol ``(L`` and closes with ``)L``. Parts of speech and the top node are left
out. Words are in lower case if the training text has that form often enough; any other word becomes its unknown class.
"""

from collections import Counter
from pathlib import Path
from typing import Collection, Iterable, List, Union

from fairseq_plugins.trees.cleaning import plain_label
from fairseq_plugins.trees.tree import TOP_LABELS, Tree, Visit, leaves, walk

KEPT_WORDS = "kept_words.txt"
"""Name of the file of kept words beside the gold trees of a prepared corpus."""

_ENDINGS = {"ing": "ing", "ed": "ed", "ly": "ly", "s": "s", "est": "est", "er": "ER", "ion": "ion", "ory": "ory"}


class Linearisation:
    """Trees to symbols.

    Args:
        kept_words: words in lower case that stay words.
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
        """A word in lower case if that is kept, else its unknown class."""
        lowered = word.lower()
        return lowered if lowered in self._kept_words else unknown_class(word)


def unknown_class(word: str) -> str:
    """The class of a word that is too rare, by its spelling: ``<unk>``, ``<cunking>``, ``<unkn>`` and 23 others."""
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
    """Words with at least so many occurrences, the most frequent first, then by the alphabet."""
    kept = [(-count, word) for word, count in counts.items() if count >= min_count]
    return [word for _, word in sorted(kept)]


def read_linearisation(data_dir: Union[str, Path]) -> Linearisation:
    """The linearisation of a prepared corpus.

    Raises:
        ValueError: if the folder has no list of kept words.
    """
    path = Path(data_dir) / "trees" / KEPT_WORDS
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist, which tells how trees become symbols: give the directory that "
            "data-prep/wsj/prepare.sh wrote"
        )
    return Linearisation(path.read_text(encoding="utf-8").split())
