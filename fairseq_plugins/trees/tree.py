"""Bracketed constituency trees of any depth: reading, walking, writing."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Iterable, Iterator, List, Optional, Tuple

TOP_LABELS = frozenset(["", "S1", "TOP", "ROOT"])
"""Labels of a node that stands above the sentence and is no constituent."""

_TOKEN = re.compile(r"[()]|[^\s()]+")


class EmptyTree(ValueError):
    """A tree, or a constituent of it, has no word, as parsers write where they fail."""


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A node with all that is below it; as a text it is bracketed.

    Attributes:
        label: of the constituent, or the part of speech of the word; may be empty at the top.
        children: nodes below it from left to right, of which a word has none.
        word: None where there are children.
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
    """What a walk does at a node."""

    OPEN = "open"
    WORD = "word"
    CLOSE = "close"


def walk(tree: Tree) -> Iterator[Tuple[Visit, Tree]]:
    """Depth first: a constituent is opened and, after all below it, closed; a word is visited once."""
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
    """The tree of a text; ``name`` says where it stands.

    Raises:
        EmptyTree: if there is no tree, or one with a constituent without a word.
        ValueError: unless the text is exactly one tree.
    """
    reader = _Reader()
    try:
        trees = list(reader.trees(text))
        reader.check_end()
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from error
    if len(trees) != 1:
        raise (ValueError if trees else EmptyTree)(f"{name}: {len(trees)} trees where one is expected")
    return trees[0]


def read_trees(lines: Iterable[str], *, name: str) -> Iterator[Tree]:
    """Trees that may go on from line to line; ``name`` says where they stand.

    Raises:
        ValueError: with the line, where brackets or words do not make a tree.
    """
    reader = _Reader()
    num_lines = 0
    try:
        for line in lines:
            num_lines += 1
            yield from reader.trees(line)
        reader.check_end()
    except ValueError as error:
        raise ValueError(f"{name}, line {num_lines}: {error}") from error


@dataclass
class _OpenNode:
    """A node whose end was not read yet; the label is None before it was read."""

    children: List[Tree]
    label: Optional[str] = None
    word: Optional[str] = None


class _Reader:
    """Puts tokens together to trees."""

    def __init__(self) -> None:
        self._path: List[_OpenNode] = []

    def trees(self, text: str) -> Iterator[Tree]:
        """The trees that end in a text, which goes on from the texts before it."""
        for token in _TOKEN.findall(text):
            tree = self._take(token)
            if tree is not None:
                yield tree

    def check_end(self) -> None:
        """Refuse an end within a tree."""
        if self._path:
            raise ValueError(f"the text ends within a tree, {len(self._path)} ')' are missing")

    def _take(self, token: str) -> Optional[Tree]:
        if token == "(":
            self._open()
        elif token == ")":
            return self._close()
        else:
            self._add(token)
        return None

    def _open(self) -> None:
        if self._path:
            above = self._path[-1]
            above.label = above.label or ""
            if above.word is not None:
                raise ValueError(f"'(' after the word {above.word}, which is not in brackets with its part of speech")
        self._path.append(_OpenNode([]))

    def _add(self, token: str) -> None:
        if not self._path:
            raise ValueError(f"'{token}' outside of brackets")
        node = self._path[-1]
        if node.label is None:
            node.label = token
        elif node.word is not None or node.children:
            raise ValueError(f"'{token}' has no part of speech: a word is written (TAG {token})")
        else:
            node.word = token

    def _close(self) -> Optional[Tree]:
        if not self._path:
            raise ValueError("')' without '('")
        node = self._path.pop()
        if node.word is None and not node.children:
            raise EmptyTree(f"({node.label or ''}) is empty: there is neither a word nor a constituent in it")
        tree = Tree(node.label or "", tuple(node.children), node.word)
        if not self._path:
            return tree
        self._path[-1].children.append(tree)
        return None
