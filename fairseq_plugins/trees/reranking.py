"""Lists of candidate trees that a parser wrote, in either of two forms."""

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Collection, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.data.text import numbered_lines
from fairseq_plugins.evaluation.raw_text import encode_lines
from fairseq_plugins.evaluation.scoring import ScoredSequence, average_nll, longest_sequence, score_sequences
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


# Sentences with their gold trees, one a line.


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


# Which list of a parser belongs to which gold sentence.


def pair_lists(lists: ParseLists, gold: Sequence[GoldSentence]) -> Dict[str, List[CandidateTree]]:
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
    known = set(names)
    foreign = next((name for name in candidates if name not in known), None)
    if foreign is not None:
        remedy = "" if gold[0].name is not None else f"; lines are counted from 0 to {len(gold) - 1}"
        raise ValueError(f"there is a list for sentence {foreign}, which the gold trees do not have{remedy}")
    return {name: candidates.get(name, []) for name in names}


# Candidates of a parser that a language model can tell apart.
#
# Shapes: n symbols of a tree with the end mark.


@dataclass(frozen=True)
class Hypothesis:
    """Candidates that are one tree to a language model; the first of them stands for all.

    Attributes:
        candidate: the first.
        place: its place in the parser's list, from 1.
        symbols: (n,) int32 with the end mark.
        counts: of the first against the gold tree; None if they cannot be compared.
        best_counts: of the candidate with the highest F1, which can be another where each tree tells its own
            punctuation, or words of a class differ; None if none can be compared.
    """

    candidate: CandidateTree
    place: int
    symbols: Tensor
    counts: Optional[BracketCounts]
    best_counts: Optional[BracketCounts]


def merge_candidates(
    candidates: Sequence[CandidateTree], gold_tree: GoldTree, *, linearisation: Linearisation, dictionary: Dictionary
) -> List[Hypothesis]:
    """The hypotheses of a sentence; of candidates with the same symbols the first is kept.

    A candidate that is an empty tree, as parsers write where they fail, is left out.

    Args:
        candidates: of a parser, its best first.
        gold_tree: what they are held against.
        linearisation: that the models were trained with.
        dictionary: of the models.

    Raises:
        ValueError: if a candidate is no tree.
    """
    hypotheses: Dict[str, Hypothesis] = {}
    for place, candidate in enumerate(candidates, start=1):
        try:
            tree = candidate.tree()
        except EmptyTree:
            continue
        symbols = " ".join(linearisation.symbols(tree))
        counts = _counts(gold_tree, tree)
        if symbols in hypotheses:
            same = hypotheses[symbols]
            hypotheses[symbols] = replace(same, best_counts=_better(same.best_counts, counts))
            continue
        (encoded,) = encode_lines([symbols], dictionary)
        hypotheses[symbols] = Hypothesis(candidate, place, encoded.int(), counts, best_counts=counts)
    return list(hypotheses.values())


def _counts(gold_tree: GoldTree, tree: Tree) -> Optional[BracketCounts]:
    try:
        return gold_tree.score(tree)
    except NotComparable:
        return None


def _better(one: Optional[BracketCounts], other: Optional[BracketCounts]) -> Optional[BracketCounts]:
    """Those with the higher F1, the first of equals."""
    return max((counts for counts in (one, other) if counts is not None), key=lambda counts: counts.f1, default=None)


# Sentences with what a language model can choose among for each.


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
        punctuation_of: see :mod:`~fairseq_plugins.trees.trees`.
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


# Scores of the trees that a parser proposes, by language models (Choe & Charniak 2016; Takase et al. 2018).
#
# The score of a tree is the sum of -log p over its symbols and the end mark, each tree from a fresh state. The lowest
# wins. Neither the parser's score nor the length is part of it.
#
# Shapes: n symbols of a tree with the end mark, H hypotheses of a sentence.


Combination = Literal["sum", "mean"]
"""How several models become one: the sum of their log-probabilities, or the mean of their probabilities of a symbol."""

SYMBOLS_AT_A_TIME = 1 << 16
"""Symbols whose scores are in memory one by one."""


@dataclass(frozen=True)
class ModelScores:
    """NLL of the hypotheses of each sentence in nats, (H,) float64.

    Attributes:
        alone: for each model by itself, in their order.
        together: for each ensemble, in their order.
    """

    alone: List[List[Tensor]]
    together: List[List[Tensor]]


def score_hypotheses(
    models: Sequence[FairseqLanguageModel],
    sentences: Sequence[Sentence],
    *,
    ensembles: Sequence[Sequence[int]] = (),
    combination: Combination = "sum",
    max_tokens: int = 4096,
    device: str = "cpu",
    show_progress: bool = False,
) -> ModelScores:
    """Score every hypothesis from a fresh state.

    Args:
        models: language models on ``device`` with the vocabulary that the sentences were read with.
        sentences: from ``read_sentences``, which :func:`check_lengths` lets pass.
        ensembles: indices of the models of each.
        combination: what several models are together.
        max_tokens, device: see :func:`~fairseq_plugins.evaluation.scoring.score_sequences`.
        show_progress: draw a bar.

    Raises:
        ValueError: if a batch would have no token, or an NLL is not finite.
    """
    scores = ModelScores(alone=[[] for _ in models], together=[[] for _ in ensembles])
    num_symbols = len(models) * sum(_num_symbols(sentence) for sentence in sentences)
    with tqdm(total=num_symbols, desc="scoring", unit="symbol", disable=not show_progress) as bar:
        for chunk in reranking_chunks(sentences):
            sequences = [hypothesis.symbols.long() for sentence in chunk for hypothesis in sentence.hypotheses]
            sizes = [len(sentence.hypotheses) for sentence in chunk]
            scored = []
            for model, nll in zip(models, scores.alone):
                scored.append(score_sequences([model], sequences, max_tokens=max_tokens, device=device))
                nll.extend(_nll(scored[-1]).split(sizes))
                bar.update(sum(map(len, sequences)))
            for members, nll in zip(ensembles, scores.together):
                nll.extend(_together([scored[index] for index in members], combination=combination).split(sizes))
    return scores


def check_lengths(models: Sequence[FairseqLanguageModel], sentences: Sequence[Sentence]) -> None:
    """Refuse hypotheses that a model cannot read.

    Raises:
        ValueError: for the first of them, with the name of its sentence.
    """
    longest = longest_sequence(models)
    for sentence in sentences:
        for hypothesis in sentence.hypotheses:
            length = len(hypothesis.symbols)
            if length > longest:
                raise ValueError(
                    f"sentence {sentence.name}: the candidate in {hypothesis.candidate.place} has {length:,} symbols "
                    f"with the end mark, and the models read at most {longest:,}: leave it out or take other models"
                )


def _num_symbols(sentence: Sentence) -> int:
    return sum(len(hypothesis.symbols) for hypothesis in sentence.hypotheses)


def reranking_chunks(sentences: Sequence[Sentence]) -> Iterator[List[Sentence]]:
    """Sentences with so many symbols at least, the last with fewer."""
    chunk: List[Sentence] = []
    size = 0
    for sentence in sentences:
        chunk.append(sentence)
        size += _num_symbols(sentence)
        if size >= SYMBOLS_AT_A_TIME:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _nll(scored: Sequence[ScoredSequence]) -> Tensor:
    return torch.tensor([sequence.nll for sequence in scored], dtype=torch.float64)


def _together(scored: Sequence[Sequence[ScoredSequence]], *, combination: Combination) -> Tensor:
    if combination == "sum":
        return torch.stack([_nll(of_model) for of_model in scored]).sum(dim=0)
    nll = [average_nll([one.token_nll for one in of_models]).sum() for of_models in zip(*scored)]
    return torch.stack(nll) if nll else torch.zeros(0, dtype=torch.float64)


# Choosing one tree of each sentence, and what a way to choose is worth.


Counted = Literal["first", "best"]
"""Which candidate of a hypothesis is scored: the first, or for the oracle the best."""


@dataclass(frozen=True)
class SystemScore:
    """What a way to choose is worth.

    Attributes:
        of_sentences: brackets of each sentence's chosen tree; none of those skipped.
        skipped: names of sentences whose chosen tree cannot be compared with the gold tree, or that have no candidate.
    """

    of_sentences: List[BracketCounts]
    skipped: List[str]

    @property
    def counts(self) -> BracketCounts:
        """Brackets of all sentences together."""
        return total(self.of_sentences)


def best_by_parser(sentences: Sequence[Sentence]) -> List[Optional[int]]:
    """The index of the parser's best hypothesis of each sentence; None where there is none."""
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
    sentences: Sequence[Sentence], choices: Sequence[Optional[int]], *, counted: Counted = "first"
) -> SystemScore:
    """Bracket scores of the chosen hypotheses.

    Args:
        sentences: all sentences.
        choices: an index for each.
        counted: the candidate of a hypothesis.
    """
    chosen: List[Optional[BracketCounts]] = []
    for sentence, choice in zip(sentences, choices, strict=True):
        hypothesis = None if choice is None else sentence.hypotheses[choice]
        if hypothesis is None:
            chosen.append(None)
        else:
            chosen.append(hypothesis.counts if counted == "first" else hypothesis.best_counts)
    skipped = [sentence.name for sentence, counts in zip(sentences, chosen) if counts is None]
    return SystemScore([counts or BracketCounts() for counts in chosen], skipped)


# Ways to choose the tree of a sentence: the parser's, a language model's, several models' together, the oracle's.


PARSER, ORACLE = "parser", "oracle"
"""Names of what chooses without a model."""

Systems = Mapping[str, Sequence[SystemScore]]
"""Scores of the runs of each system, by its name; all but groups of models have one run."""


def ensembles_of(groups: Mapping[str, Sequence[int]], *, combination: Combination) -> Dict[str, List[int]]:
    """Indices of the models that choose together, by the ensemble's name: those of each group, and all.

    Args:
        groups: indices of models that differ in their seed, by name.
        combination: see :func:`~fairseq_plugins.trees.reranking.score_hypotheses`.
    """
    ensembles = {
        f"{name} ({combination} of {len(members)})": list(members)
        for name, members in groups.items()
        if len(members) > 1
    }
    if len(groups) > 1:
        every = sorted(index for members in groups.values() for index in members)
        ensembles[f"{combination} of {len(every)}"] = every
    return ensembles


def score_systems(
    sentences: Sequence[Sentence],
    scores: ModelScores,
    *,
    groups: Mapping[str, Sequence[int]],
    ensembles: Collection[str],
) -> Systems:
    """What each way to choose is worth.

    Args:
        sentences: of a split.
        scores: of their hypotheses.
        groups: indices of models that differ in their seed, by name.
        ensembles: names of those in the scores.
    """
    chosen = {
        PARSER: [best_by_parser(sentences)],
        **{name: [best_by_models(scores.alone[index]) for index in members] for name, members in groups.items()},
        **{name: [best_by_models(nll)] for name, nll in zip(ensembles, scores.together)},
    }
    systems = {name: [score_choices(sentences, run) for run in runs] for name, runs in chosen.items()}
    return {**systems, ORACLE: [score_choices(sentences, best_by_gold(sentences), counted="best")]}
