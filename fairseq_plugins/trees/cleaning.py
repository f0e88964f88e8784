"""Trees of the treebank without what parsers do not produce."""

import re
from typing import List, Optional

from fairseq_plugins.trees.tree import TOP_LABELS, Tree, Visit, walk

EMPTY_ELEMENT = "-NONE-"
"""Part of speech of a trace, which no word belongs to."""

TOP = "S1"
"""Label of the node above a cleaned sentence."""


def plain_label(label: str) -> str:
    """A label without function tags and indices: what is before the first ``-`` or ``=``, of ``A|B`` the first.

    A label that begins with such a mark, as ``-LRB-`` does, stays.
    """
    return re.split("[-=|]", label, maxsplit=1)[0] or label


def clean_tree(tree: Tree) -> Optional[Tree]:
    """A tree under a top node ``S1``, or None if no word is left.

    Empty elements are removed, and constituents without a word; labels are plain; a constituent whose only child is one
    with the same label is that child.
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
