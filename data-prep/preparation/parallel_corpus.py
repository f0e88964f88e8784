"""Corpora of two sides, or one of these sides for a language model: tokenised, filtered and split into subwords."""

import argparse
import importlib.metadata
import re
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from .corpus import Corpus, Step, natural, positive, ratio
from .lines import (
    ESCAPES,
    LONGEST_WORD,
    DataError,
    Row,
    RowWriter,
    Tokenizer,
    load_tokenizer,
    map_in_order,
    moses_language,
    on_each_side,
    read_rows,
    split_words,
)
from .steps import splits_of, write_splits
from .subwords import MODEL_FILES, PROGRAMS, make_subwords

RAW = "raw"  # folder of the references, in that of the tokens

LOWERCASE = {"lower tokens": "lowercase tokens", "lower lines": "lowercase"}  # in text.json -> in the summary


class ParallelCorpus(Corpus):
    """A corpus of two sides, which fairseq calls languages: ``de`` and ``en``, or ``article`` and ``title``.

    One side by itself is text for a language model.
    """

    does = "Download, check, tokenise by Moses, split into subwords and binarise"
    pairs: list[str]  # SOURCE-TARGET. A single pair is the default of the argument.
    num_merges: int
    max_ratio: float
    max_length: int = 100
    side_subwords: str = "none"  # default for one side by itself
    lowercase: bool | None = False
    lowered: str = "lower tokens"  # in text.json of a result in lower case
    keeps_empty: bool = True  # whether held-out pairs with an empty side stay in their places
    symbols: tuple[str, ...] = ()  # tokens that are never split into subwords
    # recipes whose system doc trains on the result
    recipe_of_two_dictionaries: str = "multi30k"
    recipe_of_one_dictionary: str = "multi30k_joined"

    @property
    def languages(self) -> list[str]:
        """All sides."""
        return list(dict.fromkeys(side for pair in self.pairs for side in pair.split("-")))

    def subject_type(self, text: str) -> str:
        """Check the argument PAIR: one of the pairs or sides."""
        if text not in (*self.pairs, *self.languages):
            raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join([*self.pairs, *self.languages])}")
        return text

    def subject_help(self) -> str:
        """Help of the argument PAIR."""
        return f"{', '.join(self.pairs)} (source-target), or one side for a language model: {', '.join(self.languages)}"

    def pair_with(self, language: str, options: Namespace) -> str:
        """The pair to read when only one side is prepared."""
        return next(pair for pair in self.pairs if language in pair.split("-"))

    def _pair_defaults(self) -> dict[str, Any]:
        """Options that only pairs have."""
        return {
            "min_length": 1,
            "max_length": self.max_length,
            "max_ratio": self.max_ratio,
            "joined_dictionary": False,
        }

    def add_options(self, parser: ArgumentParser) -> None:
        """Options of tokens, subwords and dictionaries, and the corpus' own."""
        add = parser.add_argument
        add("pair", nargs="?", type=self.subject_type, metavar="PAIR", help=self.subject_help())
        defaults = self._pair_defaults()

        def add_for_pairs(name: str, text: str, **kwargs: Any) -> None:
            add(f"--{name.replace('_', '-')}", help=f"{text} (default: {defaults[name]})", **kwargs)

        text = "program that learns subwords of the tokens (default: bpe, which is subword-nmt's"
        text += ")" if self.side_subwords == "bpe" else "; none for one side)"
        add("--subwords", choices=[*MODEL_FILES, "none"], help=text)
        text = f"merges, learnt on all sides together (default: {self.num_merges})"
        add("--merges", type=positive, metavar="N", help=text)
        add_for_pairs("min_length", "shortest side of a training pair, in words", type=positive, metavar="N")
        add_for_pairs("max_length", "longest side of a training pair, in words", type=positive, metavar="N")
        text = "largest ratio of the lengths of a training pair's sides; 0: no limit"
        add_for_pairs("max_ratio", text, type=ratio, metavar="R")
        add("--joined-dictionary", action="store_true", default=None, help="one dictionary for both sides")
        text = f"lowercase the tokens; the raw references keep their case (default: {bool(self.lowercase)})"
        add("--lowercase", action=argparse.BooleanOptionalAction, default=self.lowercase, help=text)
        text = "words or subwords that train has fewer than N times become <unk> (default: 0, none)"
        add("--threshold", type=natural, default=0, metavar="N", help=text)
        super().add_options(parser)

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Set the sides that are prepared, and the defaults of options that only pairs have."""
        only = self.pairs[0] if len(self.pairs) == 1 else None
        options.subject = options.pair or only
        if not options.subject:
            error(f"name the pair: {self.subject_help()}")
        alone = "-" not in options.subject
        options.pair = self.pair_with(options.subject, options) if alone else options.subject
        options.sides = tuple(options.pair.split("-"))
        options.kept_sides = (options.subject,) if alone else options.sides
        options.result = self.name if options.subject == only else f"{self.name}.{options.subject}"
        for name, default in self._pair_defaults().items():
            if alone and getattr(options, name) is not None:
                error(f"--{name.replace('_', '-')} is for a pair, not for {options.subject} by itself")
            if getattr(options, name) is None:
                setattr(options, name, default)
        options.subwords = options.subwords or (self.side_subwords if alone else "bpe")
        if options.subwords == "none" and options.merges is not None:
            error("--merges is for subwords: choose them with --subwords")
        options.merges = options.merges or self.num_merges
        if alone:
            options.max_length, options.max_ratio = sys.maxsize, 0.0
        if options.min_length > options.max_length:
            error("--min-length is larger than --max-length")

    def summary(self, options: Namespace) -> str:
        """The pair and all options that change the result."""
        has_subwords, is_pair = options.subwords != "none", options.is_pair
        parts = [
            f"{self.name} {options.subject}",
            self.variant(options),
            f"{options.merges} merges of {PROGRAMS[options.subwords]}" if has_subwords and not options.codes else "",
            f"length {options.min_length} to {options.max_length}" if is_pair else "",
            (f"ratio to {options.max_ratio:g}" if options.max_ratio else "any ratio") if is_pair else "",
            f"words seen {options.threshold} times and more" if options.threshold > 1 else "",
            LOWERCASE.get(self.words_of_text(options)["case"], ""),
            "joined dictionary" if options.joined_dictionary else "",
        ]
        return ", ".join(filter(None, parts))

    def tokenizer(self, side: str, options: Namespace) -> Callable[[str], str]:
        """A function from a raw line of a side to its tokens, joined by spaces."""
        words, case = self.load_tokenizer(side, options), self.words_of_text(options)["case"]
        return lambda line: " ".join(split_words(line, words, case))

    def load_tokenizer(self, side: str, options: Namespace) -> Tokenizer:
        """The tokenizer of :meth:`words_of_text`."""
        record = self.words_of_text(options)
        return load_tokenizer(record["tokenizer"], language=record.get("language", side), folder=Path())

    def reference(self, side: str, options: Namespace) -> Callable[[str], str]:
        """A function from a raw line of a side to its reference."""
        return str

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """Moses' words. The record names the language of one side, because its files do not."""
        language = {} if options.is_pair else {"language": moses_language(options.subject)}
        return {"tokenizer": "moses", **language, "case": self.lowered if options.lowercase else "kept"}

    def text_record(self, options: Namespace) -> dict[str, str]:
        """The record, with the file of the subwords."""
        subwords = {} if options.subwords == "none" else {"subwords": MODEL_FILES[options.subwords]}
        return {**super().text_record(options), **subwords}

    def expects(self, options: Namespace) -> str:
        """Raw text, if Moses tokenises it."""
        return "raw" if self.words_of_text(options)["tokenizer"] == "moses" else "tokens"

    def escapes(self, options: Namespace) -> Sequence[str]:
        """Escapes that subwords keep whole."""
        return ESCAPES

    def validation_interval(self, options: Namespace) -> int:
        """Every n-th training pair that passes the filter goes to valid. 0 if valid has its own files."""
        return 0

    def steps(self, options: Namespace) -> list[Step]:
        """Tokens and subwords."""
        limits = [options.min_length, options.max_length, options.max_ratio]
        words = self.words_of_text(options)
        settings = {"sacremoses": importlib.metadata.version("sacremoses"), "filter": limits, "words": words}
        steps = [Step("tokens", settings, partial(make_tokens, self, options))]
        if options.subwords != "none":
            version = importlib.metadata.version(PROGRAMS[options.subwords].removesuffix("-unigram"))
            settings = {"kind": options.subwords, "version": version, "merges": options.merges}
            make = partial(make_subwords, self.symbols, self.escapes(options), options)
            steps.append(Step("subwords", settings, make))
        return steps

    def add_files(self, folders: dict[str, Path], result: Path, options: Namespace) -> None:
        """The subword model and, for a pair, raw references."""
        if options.subwords != "none":
            model = MODEL_FILES[options.subwords]
            shutil.copyfile(folders["subwords"] / model, result / model)
        if options.is_pair:
            shutil.copytree(folders["tokens"] / RAW, result / "raw")

    def beside(self, options: Namespace) -> str:
        """The subword model and the references of a pair."""
        model = "" if options.subwords == "none" else f"{MODEL_FILES[options.subwords]} and "
        return f", with {model}the references in raw" if options.is_pair else ""

    def next_recipe(self, options: Namespace) -> str:
        """A recipe for pairs with one dictionary, for pairs with two, or for text."""
        if not options.is_pair:
            return super().next_recipe(options)
        return self.recipe_of_one_dictionary if options.joined_dictionary else self.recipe_of_two_dictionaries


# The step from raw text to tokens. Training rows are filtered. In the other splits at most empty rows are dropped.


def length_fault(row: Row, options: Namespace) -> str:
    """Why a row of tokens is dropped from train, or "".

    A side must have ``min_length`` to ``max_length`` tokens. ``max_ratio`` bounds the longer side's length divided by
    the shorter's, 0 for no bound. A word of a pair has at most ``LONGEST_WORD`` letters: it is many subwords.
    """
    lengths = [len(side.split()) for side in row]
    shorter, longer = min(lengths), max(lengths)
    if shorter == 0:
        return "empty side"
    if shorter < options.min_length or longer > options.max_length:
        return "length"
    if len(row) > 1 and any(len(word) > LONGEST_WORD for side in row for word in side.split()):
        return "long word"
    return "ratio" if options.max_ratio and longer > options.max_ratio * shorter else ""


def listed(counts: Counter) -> str:
    """Reasons with their counts, in alphabetical order."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())) or "none"


def make_tokens(corpus: ParallelCorpus, options: Namespace, text: Path, folder: Path) -> None:
    """Write the tokens of all splits, and references (raw text) of all splits except train.

    Reports how many lines of valid detokenising does not restore.
    """
    (folder / RAW).mkdir()
    splits = {}
    for split, total in splits_of(text).items():
        tokens = map_in_order(
            on_each_side,
            (corpus.tokenizer, [(side, options) for side in options.kept_sides]),
            read_rows(text, split, options.kept_sides),
            workers=options.workers,
            label=f"tokenising {split}",
            total=total,
        )
        rows = zip(tokens, read_rows(text, split, options.kept_sides))
        if split == "train":
            splits |= _write_training(corpus, options, folder, rows, total)
        else:
            splits[split] = _write_held_out(corpus, options, folder, rows, split)
    write_splits(folder, splits)


def _write_training(
    corpus: ParallelCorpus, options: Namespace, folder: Path, rows: Iterator[tuple[Row, Row]], total: int
) -> dict[str, int]:
    """Write train, and valid if it is taken from train. Returns their numbers of rows."""
    interval = corpus.validation_interval(options)
    dropped: Counter = Counter()
    num_kept = 0
    with ExitStack() as stack:
        train = stack.enter_context(RowWriter(folder, "train", options.kept_sides))
        valid = stack.enter_context(_HeldOut(corpus, options, folder, "valid")) if interval else None
        for tokens, raw in rows:
            if fault := length_fault(tokens, options):
                dropped[fault] += 1
                continue
            num_kept += 1
            if valid and num_kept % interval == 0:
                valid.write(tokens, raw)
            else:
                train.write(tokens)
    unit = "pairs" if options.is_pair else "lines"
    print(f"train: {num_kept} of {total} {unit} kept; dropped: {listed(dropped)}", flush=True)
    splits = {"train": train.num_rows, **({"valid": valid.num_rows} if valid else {})}
    if not num_kept:
        filtered = "the filter left no training pair: see --min-length, --max-length, --max-ratio"
        raise DataError(filtered if options.is_pair else "train has only empty lines: put text there")
    if not all(splits.values()):
        raise DataError(f"the filter left {num_kept} training pairs, too few for valid, one in {interval} of them")
    return splits


def _write_held_out(
    corpus: ParallelCorpus, options: Namespace, folder: Path, rows: Iterator[tuple[Row, Row]], split: str
) -> int:
    keeps_empty = options.is_pair and corpus.keeps_empty
    num_empty = 0
    with _HeldOut(corpus, options, folder, split) as held_out:
        for tokens, raw in rows:
            num_empty += not all(tokens)
            if keeps_empty or all(tokens):
                held_out.write(tokens, raw)
    if num_empty:
        unit = "pairs with an empty side" if options.is_pair else "empty lines"
        print(f"{split}: {num_empty} {unit}, {'kept in their places' if keeps_empty else 'dropped'}", flush=True)
        if not held_out.num_rows:
            raise DataError(f"{split} has only {unit}: put text there")
    return held_out.num_rows


class _HeldOut(ExitStack):
    """Writes tokens and references of a held-out split. Counts lines of valid that detokenising does not restore."""

    def __init__(self, corpus: ParallelCorpus, options: Namespace, folder: Path, split: str) -> None:
        super().__init__()
        self.reference = on_each_side(corpus.reference, [(side, options) for side in options.kept_sides])
        self.tokens = self.enter_context(RowWriter(folder, split, options.kept_sides))
        self.raw = self.enter_context(RowWriter(folder / RAW, split, options.kept_sides))
        is_measured = corpus.words_of_text(options)["tokenizer"] != "blanks" and corpus.expects(options) == "raw"
        measured = options.kept_sides if split == "valid" and is_measured else ()
        self.joiners = {side: corpus.load_tokenizer(side, options).join for side in measured}
        self.lowercase = options.lowercase
        self.num_changed: Counter = Counter()

    @property
    def num_rows(self) -> int:
        return self.tokens.num_rows

    def write(self, tokens: Row, raw: Row) -> None:
        self.tokens.write(tokens)
        self.raw.write(self.reference(raw))
        for (side, join), own, line in zip(self.joiners.items(), tokens, raw):
            line = " ".join(line.split())  # fairseq splits words at all kinds of blanks
            self.num_changed[side] += join(own.split()) != (line.lower() if self.lowercase else line)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> bool:
        for side, num_changed in self.num_changed.items() if kind is None else ():
            print(
                f"valid.{side}: tokenising and detokenising gives {self.num_rows - num_changed:,} of {self.num_rows:,} "
                f"lines back; {num_changed:,} are changed",
                flush=True,
            )
        return super().__exit__(kind, *error)


# Splits of corpora that have none


def split_rows(
    rows: list[Row], *, num_valid: int, num_test: int, largest_group: int = 1, seed: str = ""
) -> dict[str, list[Row]]:
    """Train, valid and test, each in the order of the rows. No sentence of either side is in two of them.

    Sentences that differ only in case, spaces and punctuation count as equal. Held-out rows are chosen by checksums of
    their sentences after the ``seed``, so the choice is random and reproducible. Rows with shared sentences form a
    group; groups above ``largest_group`` are in train. The last group that is chosen may exceed the number.
    """
    order = sorted(
        (group for group in _groups(rows) if len(group) <= largest_group),
        key=lambda group: min(sha256((seed + "\t".join(rows[index])).encode()).digest() for index in group),
        reverse=True,
    )
    held_out: dict[str, list[int]] = {"test": [], "valid": []}
    for chosen, size in zip(held_out.values(), (num_test, num_valid)):
        while order and len(chosen) < size:
            chosen.extend(order.pop())
    train = set(range(len(rows))).difference(*held_out.values())
    chosen_of = {"train": train, "valid": held_out["valid"], "test": held_out["test"]}
    return {split: [rows[index] for index in sorted(chosen)] for split, chosen in chosen_of.items()}


def _groups(rows: list[Row]) -> list[list[int]]:
    """Indices of rows that are connected by shared sentences (union-find)."""
    parents = list(range(len(rows)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = index = parents[parents[index]]
        return index

    owners: dict[tuple[int, str], int] = {}
    for index, row in enumerate(rows):
        for side, sentence in enumerate(row):
            key = side, re.sub(r"[\W_]+", "", sentence.casefold()) or sentence
            parents[root(index)] = root(owners.setdefault(key, index))
    groups = defaultdict(list)
    for index in range(len(rows)):
        groups[root(index)].append(index)
    return list(groups.values())
