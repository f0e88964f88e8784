"""Lists of candidate trees that a parser wrote, in either of two forms."""

import math
import re
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Dict, Iterator, List, Literal, Tuple

from fairseq_plugins.data.text_files import numbered_lines
from fairseq_plugins.trees.tree import Tree, read_tree

FORMS = "give COUNT<TAB>ID and two lines a candidate, score and tree, or ID<TAB>SCORE<TAB>TREE for each candidate"


@dataclass(frozen=True)
class CandidateTree:
    """A tree that a parser proposes.

    Attributes:
        bracketed: the tree as a text, which is read when it is needed.
        score: of the parser, the higher the better.
        place: file and line.
    """

    bracketed: str
    score: float
    place: str

    def tree(self) -> Tree:
        """The tree.

        Raises:
            EmptyTree: if a constituent has no word, as in failed parses.
            ValueError: if the text is no tree.
        """
        return read_tree(self.bracketed, name=self.place)


@dataclass(frozen=True)
class ParseLists:
    """The candidates of sentences.

    Attributes:
        candidates: of each sentence by its name, the parser's best first; a sentence may have none.
        order: whether the lists are in the order of the sentences, or in any.
    """

    candidates: Dict[str, List[CandidateTree]]
    order: Literal["of sentences", "any"]


def read_parse_lists(path: Path) -> ParseLists:
    """Lists of a file, which may be compressed.

    The form of Charniak's parser has for each sentence a line ``COUNT<TAB>ID``, then for each candidate a line with the
    log-probability and a line with the tree, best first, and an empty line; lists are in the order of the sentences.
    The other form has for each candidate a line ``ID<TAB>SCORE<TAB>TREE``, in any order, and is sorted here.

    Raises:
        ValueError: with the line, if one is not as its form has it.
    """
    lines = numbered_lines(path, wanted="a file of a parser's candidates")
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        raise ValueError(f"{path} is empty: give the candidates of a parser")
    lines = chain([first], lines)
    number, line = first
    if "\t" not in line:
        raise ValueError(f"{path}, line {number}: '{line[:40]}' has no tab: {FORMS}")
    if line.count("\t") == 1:
        return ParseLists(_lists_of_parser(path, lines), order="of sentences")
    return ParseLists(_lists_of_table(path, lines), order="any")


def _lists_of_parser(path: Path, lines: Iterator[Tuple[int, str]]) -> Dict[str, List[CandidateTree]]:
    candidates: Dict[str, List[CandidateTree]] = {}
    for number, line in lines:
        if not line.strip():
            continue
        count, tab, sentence = line.partition("\t")
        if not tab or not re.fullmatch(r"[0-9]{1,9}", count):
            raise ValueError(f"{path}, line {number}: '{line[:40]}' where COUNT<TAB>ID of a list is expected: {FORMS}")
        if sentence in candidates:
            raise ValueError(f"{path}, line {number}: sentence {sentence} has a list already")
        candidates[sentence] = []
        for _ in range(int(count)):
            pair = list(islice(lines, 2))
            if len(pair) < 2:
                found = len(candidates[sentence])
                raise ValueError(f"{path} ends within the list of {sentence}: {found} of {count} candidates are whole")
            (score_number, score), (tree_number, bracketed) = pair
            value = _score(score, place=f"{path}, line {score_number}")
            candidates[sentence].append(CandidateTree(bracketed, value, place=f"{path}, line {tree_number}"))
    return candidates


def _lists_of_table(path: Path, lines: Iterator[Tuple[int, str]]) -> Dict[str, List[CandidateTree]]:
    candidates: Dict[str, List[CandidateTree]] = {}
    for number, line in lines:
        if not line.strip():
            continue
        fields = line.split("\t", 2)
        if len(fields) != 3:
            raise ValueError(
                f"{path}, line {number}: {len(fields)} fields where ID<TAB>SCORE<TAB>TREE is expected: {FORMS}"
            )
        (sentence, score, bracketed), place = fields, f"{path}, line {number}"
        candidate = CandidateTree(bracketed, _score(score, place=place), place)
        candidates.setdefault(sentence, []).append(candidate)
    return {
        sentence: sorted(given, key=lambda candidate: candidate.score, reverse=True)
        for sentence, given in candidates.items()
    }


def _score(text: str, *, place: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if math.isnan(score):
        raise ValueError(f"{place}: '{text[:40]}' where the score of a candidate is expected")
    return score
