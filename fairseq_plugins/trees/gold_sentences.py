"""Sentences with their gold trees, one a line."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from fairseq_plugins.data.text_files import numbered_lines
from fairseq_plugins.trees.tree import Tree, read_tree


@dataclass(frozen=True)
class GoldSentence:
    """A sentence and its tree.

    Attributes:
        tree: the gold tree.
        name: of the sentence, or None where the file has none.
    """

    tree: Tree
    name: Optional[str] = None


def read_gold_sentences(path: Path) -> List[GoldSentence]:
    """Sentences of a file, which may be compressed, with a line ``TREE``, or ``ID<TAB>TREE``, for each.

    Raises:
        ValueError: with the line, if one is not a tree, some have a name and others none, or two have the same.
    """
    sentences = []
    for number, line in numbered_lines(path, wanted="a file of gold trees"):
        name, bracketed = None, line
        if "\t" in line and not line.lstrip(" ").startswith("("):
            name, _, bracketed = line.partition("\t")
            if not name.strip():
                raise ValueError(f"{path}, line {number}: the ID before the tab is empty: write ID<TAB>TREE, or TREE")
        sentences.append(GoldSentence(read_tree(bracketed, name=f"{path}, line {number}"), name=name))
    names = [sentence.name for sentence in sentences]
    if not sentences:
        raise ValueError(f"{path} is empty: give a gold tree a line")
    if None in names and len(set(names)) > 1:
        raise ValueError(f"{path}: some lines are ID<TAB>TREE and others only a tree: write all in one way")
    if None not in names and len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{path}: sentence {twice} stands there twice")
    return sentences
