"""Reranking of a parser's candidate trees by language models (Choe & Charniak 2016; Takase et al. 2018).

The score of a tree is the sum of -log p over its symbols and the end mark, from a fresh state. The lowest wins. Neither
the parser's score nor the length is part of it.

Shapes: n symbols of a tree with the end mark, H hypotheses of a sentence.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, TypeVar

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.evaluation.raw_text import number_words
from fairseq_plugins.evaluation.scoring import average_nll, score_sequences
from fairseq_plugins.files import numbered_lines
from fairseq_plugins.options import UserError
from fairseq_plugins.trees.trees import (
    BracketCounts,
    EmptyTree,
    GoldTree,
    Linearisation,
    NotComparable,
    PunctuationOf,
    Tree,
    read_tree,
    total,
)

# Candidates of a parser.

FORMS = "give COUNT<TAB>ID and two lines a candidate, score and tree, or ID<TAB>SCORE<TAB>TREE for each candidate"


@dataclass(frozen=True)
class CandidateTree:
    """A tree as text, its score by the parser (higher is better), and its location: file and line."""

    bracketed: str
    score: float
    location: str


@dataclass(frozen=True)
class ParseLists:
    """Candidates of each sentence by its name, the parser's best first, and whether lists are in the text's order."""

    candidates: Dict[str, List[CandidateTree]]
    order: Literal["of sentences", "any"]


def read_parse_lists(path: Path) -> ParseLists:
    """Lists of a file, which may be compressed.

    Charniak's parser writes for each sentence a line ``COUNT<TAB>ID``, then for each candidate, best first, a line with
    the log-probability and a line with the tree, and an empty line. Lists are in the order of the sentences. The other
    format has a line ``ID<TAB>SCORE<TAB>TREE`` for each candidate, in any order, and is sorted here. Raises UserError
    with the line, if one has neither format.
    """
    lines = numbered_lines(path, wanted="a file of a parser's candidates")
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        raise UserError(f"{path} is empty: give the candidates of a parser")
    lines = chain([first], lines)
    number, line = first
    if "\t" not in line:
        raise UserError(f"{path}, line {number}: '{line[:40]}' has no tab: {FORMS}")
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
            raise UserError(f"{path}, line {number}: '{line[:40]}' where COUNT<TAB>ID of a list is expected: {FORMS}")
        if sentence in candidates:
            raise UserError(f"{path}, line {number}: sentence {sentence} has a list already")
        candidates[sentence] = []
        for _ in range(int(count)):
            pair = list(islice(lines, 2))
            if len(pair) < 2:
                found = len(candidates[sentence])
                raise UserError(f"{path} ends within the list of {sentence}: {found} of {count} candidates are whole")
            (score_number, score), (tree_number, bracketed) = pair
            value = _score(score, location=f"{path}, line {score_number}")
            candidates[sentence].append(CandidateTree(bracketed, value, location=f"{path}, line {tree_number}"))
    return candidates


def _lists_of_table(path: Path, lines: Iterator[Tuple[int, str]]) -> Dict[str, List[CandidateTree]]:
    candidates: Dict[str, List[CandidateTree]] = {}
    for number, line in lines:
        if not line.strip():
            continue
        fields = line.split("\t", 2)
        if len(fields) != 3:
            raise UserError(
                f"{path}, line {number}: {len(fields)} fields where ID<TAB>SCORE<TAB>TREE is expected: {FORMS}"
            )
        (sentence, score, bracketed), location = fields, f"{path}, line {number}"
        candidate = CandidateTree(bracketed, _score(score, location=location), location)
        candidates.setdefault(sentence, []).append(candidate)
    return {
        sentence: sorted(given, key=lambda candidate: candidate.score, reverse=True)
        for sentence, given in candidates.items()
    }


def _score(text: str, *, location: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if math.isnan(score):
        raise UserError(f"{location}: '{text[:40]}' where the score of a candidate is expected")
    return score


# Gold trees, and the lists that belong to them.


@dataclass(frozen=True)
class GoldSentence:
    """A gold tree, and the name of its sentence, or None if the file has no names."""

    tree: Tree
    name: Optional[str] = None


def read_gold_sentences(path: Path) -> List[GoldSentence]:
    """Sentences of a file, which may be compressed, with a line ``TREE`` or ``ID<TAB>TREE`` for each.

    Raises UserError with the line, if one is not a tree, only some have names, or two have the same name.
    """
    sentences = []
    for number, line in numbered_lines(path, wanted="a file of gold trees"):
        name, bracketed = None, line
        if not line.strip():
            raise UserError(f"{path}, line {number} is blank: remove it")
        if "\t" in line and not line.lstrip(" ").startswith("("):
            name, _, bracketed = line.partition("\t")
            if not name.strip():
                raise UserError(f"{path}, line {number}: the ID before the tab is empty: write ID<TAB>TREE, or TREE")
        sentences.append(GoldSentence(read_tree(bracketed, name=f"{path}, line {number}"), name=name))
    names = [sentence.name for sentence in sentences]
    if not sentences:
        raise UserError(f"{path} is empty: give a gold tree a line")
    if None in names and len(set(names)) > 1:
        raise UserError(f"{path}: some lines are ID<TAB>TREE and others only a tree: write all in one way")
    if None not in names and len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise UserError(f"{path}: sentence {twice} stands there twice")
    return sentences


def pair_lists(lists: ParseLists, gold: Sequence[GoldSentence]) -> Dict[str, List[CandidateTree]]:
    """The candidates of each gold sentence by its name, in the order of the gold sentences.

    Sentences with names get the list of that name, or none. Sentences without names get the lists one by one, if these
    are in the order of the sentences, and otherwise the list with the sentence's number, from 0. Raises UserError if
    lists and sentences do not match.
    """
    candidates = lists.candidates
    if all(sentence.name is None for sentence in gold) and lists.order == "of sentences":
        if len(candidates) != len(gold):
            raise UserError(f"{len(candidates)} lists for {len(gold)} gold trees: give the lists of these sentences")
        return candidates
    names = [str(number) if sentence.name is None else sentence.name for number, sentence in enumerate(gold)]
    known = set(names)
    foreign = next((name for name in candidates if name not in known), None)
    if foreign is not None:
        remedy = "" if gold[0].name is not None else f"; lines are counted from 0 to {len(gold) - 1}"
        raise UserError(f"there is a list for sentence {foreign}, which the gold trees do not have{remedy}")
    return {name: candidates.get(name, []) for name in names}


# Hypotheses: candidates with different symbols.


@dataclass(frozen=True)
class Hypothesis:
    """Candidates with the same symbols, which a language model cannot distinguish. The first represents all.

    Attributes:
        candidate: the first candidate.
        rank: in the parser's list, from 1.
        symbols: (n,) int32 with the end mark.
        counts: of the first candidate against the gold tree; None if they are not comparable.
        best_counts: of the candidate with the highest F1; None if none is comparable. Candidates can differ in parts of
            speech, and thus in punctuation, and in words of the same unknown class.
    """

    candidate: CandidateTree
    rank: int
    symbols: Tensor
    counts: Optional[BracketCounts]
    best_counts: Optional[BracketCounts]


def merge_candidates(
    candidates: Sequence[CandidateTree], gold_tree: GoldTree, *, linearisation: Linearisation, dictionary: Dictionary
) -> List[Hypothesis]:
    """The hypotheses of a sentence, from a parser's candidates, its best first. Raises UserError if one is not a tree.

    Empty trees, which are failures of a parser, are left out.
    """
    hypotheses: Dict[str, Hypothesis] = {}
    for rank, candidate in enumerate(candidates, start=1):
        try:
            tree = read_tree(candidate.bracketed, name=candidate.location)
        except EmptyTree:
            continue
        symbols = " ".join(linearisation.symbols(tree))
        counts = _counts(gold_tree, tree)
        if symbols in hypotheses:
            same = hypotheses[symbols]
            hypotheses[symbols] = replace(same, best_counts=_better(same.best_counts, counts))
            continue
        numbers = number_words(symbols.split(), dictionary)
        hypotheses[symbols] = Hypothesis(candidate, rank, numbers.int(), counts, best_counts=counts)
    return list(hypotheses.values())


def _counts(gold_tree: GoldTree, tree: Tree) -> Optional[BracketCounts]:
    try:
        return gold_tree.score(tree)
    except NotComparable:
        return None


def _better(one: Optional[BracketCounts], other: Optional[BracketCounts]) -> Optional[BracketCounts]:
    """The counts with the higher F1, the first of equals."""
    return max((counts for counts in (one, other) if counts is not None), key=lambda counts: counts.f1, default=None)


@dataclass(frozen=True)
class Sentence:
    """A sentence with its hypotheses, the parser's best first, and the number of the parser's candidates."""

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
) -> List[Sentence]:
    """The sentences of a parser's lists and gold trees, with their hypotheses, for the models of a dictionary.

    Raises UserError if a candidate is not a tree, or lists and sentences do not match, for example because no tree has
    the words of its gold tree.
    """
    paired = pair_lists(lists, gold)
    sentences = []
    bar = progress(zip(paired.items(), gold), desc="reading trees", total=len(gold), unit="sentence")
    for (name, candidates), sentence in bar:
        gold_tree = GoldTree(sentence.tree, punctuation_of=punctuation_of)
        hypotheses = merge_candidates(candidates, gold_tree, linearisation=linearisation, dictionary=dictionary)
        sentences.append(Sentence(name, hypotheses, num_candidates=len(candidates)))
    if not any(hypothesis.best_counts for sentence in sentences for hypothesis in sentence.hypotheses):
        raise UserError("no candidate has the words of its gold tree: give lists and gold trees of the same sentences")
    return sentences


# Scores by language models.

Combination = Literal["sum", "mean"]
"""Combination of several models: the sum of their log-probabilities, or the mean of their probabilities of a symbol."""

Member = TypeVar("Member")


def ensembles_of(groups: Mapping[str, Sequence[Member]], *, combination: Combination) -> Dict[str, List[Member]]:
    """Ensembles of each group of several models, and of the models of all groups, by name."""
    ensembles = {
        f"{name} ({combination} of {len(members)})": list(members)
        for name, members in groups.items()
        if len(members) > 1
    }
    if len(groups) > 1:
        every = [member for members in groups.values() for member in members]
        ensembles[f"{combination} of {len(every)}"] = every
    return ensembles


NLL = List[Tensor]
"""NLL of the hypotheses of each sentence in nats, (H,) float64."""


def score_hypotheses(
    groups: Mapping[str, Sequence[FairseqLanguageModel]],
    sentences: Sequence[Sentence],
    *,
    combination: Combination = "sum",
    max_tokens: int = 4096,
) -> Dict[str, List[NLL]]:
    """Score every hypothesis from a fresh state by each model of each group, and by each of :func:`ensembles_of`.

    Args:
        groups: by name, models that differ in their seed, with the vocabulary that the sentences were read with.
        max_tokens: see :func:`~fairseq_plugins.evaluation.scoring.score_sequences`.

    Raises:
        UserError: if an NLL is not finite.
    """
    sequences = [hypothesis.symbols.long() for sentence in sentences for hypothesis in sentence.hypotheses]
    sizes = [len(sentence.hypotheses) for sentence in sentences]
    scored = {
        name: [score_sequences([model], sequences, max_tokens=max_tokens) for model in models]
        for name, models in groups.items()
    }
    nll = {name: list(map(_nll, runs)) for name, runs in scored.items()}
    for name, members in ensembles_of(scored, combination=combination).items():
        nll[name] = [_together(members, combination=combination)]
    return {name: [list(run.split(sizes)) for run in runs] for name, runs in nll.items()}


def _nll(scored: Sequence[Tensor]) -> Tensor:
    return torch.tensor([float(nll.sum()) for nll in scored], dtype=torch.float64)


def _together(scored: Sequence[Sequence[Tensor]], *, combination: Combination) -> Tensor:
    if combination == "sum":
        return torch.stack([_nll(sequences) for sequences in scored]).sum(dim=0)
    nll = [average_nll(by_model).sum() for by_model in zip(*scored)]
    return torch.stack(nll) if nll else torch.zeros(0, dtype=torch.float64)


# Systems: ways to choose one tree of each sentence, and their scores.


@dataclass(frozen=True)
class SystemScore:
    """Bracket counts of each sentence's chosen tree, zero for skipped ones, and the names of the skipped sentences.

    They have no candidate, or the chosen tree is not comparable with the gold tree.
    """

    of_sentences: List[BracketCounts]
    skipped: List[str]

    @property
    def counts(self) -> BracketCounts:
        """Counts of all sentences together."""
        return total(self.of_sentences)


def best_by_parser(sentences: Sequence[Sentence]) -> List[Optional[int]]:
    """The index of the parser's best hypothesis of each sentence; None if there is none."""
    return [0 if sentence.hypotheses else None for sentence in sentences]


def best_by_models(nll: Sequence[Tensor]) -> List[Optional[int]]:
    """The index of the hypothesis with the lowest NLL of each sentence, the first of equals; ``nll`` holds (H,)."""
    return [int(one.argmin()) if len(one) else None for one in nll]


def best_by_gold(sentences: Sequence[Sentence]) -> List[Optional[int]]:
    """The oracle: the index of the hypothesis with the highest F1 of each sentence, the first of equals."""
    choices: List[Optional[int]] = []
    for sentence in sentences:
        f1 = [-1.0 if one.best_counts is None else one.best_counts.f1 for one in sentence.hypotheses]
        choices.append(f1.index(max(f1)) if f1 else None)
    return choices


def score_choices(
    sentences: Sequence[Sentence],
    choices: Sequence[Optional[int]],
    *,
    counts_of: Callable[[Hypothesis], Optional[BracketCounts]] = lambda one: one.counts,
) -> SystemScore:
    """Bracket scores of the chosen hypotheses, one for each sentence, or none. The oracle counts ``best_counts``."""
    chosen = [
        None if choice is None else counts_of(sentence.hypotheses[choice])
        for sentence, choice in zip(sentences, choices, strict=True)
    ]
    skipped = [sentence.name for sentence, counts in zip(sentences, chosen) if counts is None]
    return SystemScore([counts or BracketCounts() for counts in chosen], skipped)


PARSER, ORACLE = "parser", "oracle"
"""Names of the systems without a model."""

Systems = Mapping[str, Sequence[SystemScore]]
"""Scores of the runs of each system, by name. Only groups of models have several runs."""


def score_systems(sentences: Sequence[Sentence], nll: Mapping[str, Sequence[NLL]]) -> Systems:
    """Scores of the parser, of all runs in ``nll``, as :func:`score_hypotheses` returns it, and of the oracle."""
    chosen = {PARSER: [best_by_parser(sentences)], **{name: map(best_by_models, runs) for name, runs in nll.items()}}
    systems = {name: [score_choices(sentences, run) for run in runs] for name, runs in chosen.items()}
    return {
        **systems,
        ORACLE: [score_choices(sentences, best_by_gold(sentences), counts_of=lambda one: one.best_counts)],
    }
