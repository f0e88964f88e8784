"""The step from raw text to tokens, and its tokenisers and filters.

Training rows are filtered. In the other splits every row stays.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .lines import DataError, Row, RowWriter, map_in_order, read_rows
from .moses import MosesWords
from .steps import splits_of, write_splits

if TYPE_CHECKING:
    from .parallel_corpus import ParallelCorpus

RAW = "raw"  # folder of the references, in that of the tokens


def moses(language: str, lowercase: bool) -> Callable[[str], str]:
    """A function from a raw line to its tokens, joined by spaces.

    ``lowercase`` changes the tokens. The tokeniser needs the line's own case to tell sentence ends from abbreviations.
    """
    words = MosesWords(language)

    def tokenize(line: str) -> str:
        tokens = " ".join(words.split(line))
        return tokens.lower() if lowercase else tokens

    return tokenize


def on_each_side(build: Callable[..., Callable[[str], str]], arguments: Iterable[tuple]) -> Callable[[Row], Row]:
    """A function of rows that applies ``build(*arguments)`` of each side to its line."""
    functions = [build(*each) for each in arguments]
    return lambda row: tuple(function(line) for function, line in zip(functions, row, strict=True))


def length_fault(row: Row, *, min_length: int, max_length: int, max_ratio: float) -> str:
    """Why a row of tokens is dropped from train, or "".

    A side must have ``min_length`` to ``max_length`` tokens. ``max_ratio`` bounds the longer side's length divided by
    the shorter's, 0 for no bound.
    """
    lengths = [len(side.split()) for side in row]
    shorter, longer = min(lengths), max(lengths)
    if shorter == 0:
        return "empty side"
    if shorter < min_length or longer > max_length:
        return "length"
    return "ratio" if max_ratio and longer > max_ratio * shorter else ""


def screen(pairs: Iterable[Row], fault_of: Callable[[Row], str], split: str, drop: bool) -> Iterator[Row]:
    """Yield rows, without faulty ones if ``drop``, and report the faults at the end. ``fault_of`` gives "" for none."""
    faults: Counter = Counter()
    total = 0
    for pair in pairs:
        total += 1
        if fault := fault_of(pair):
            faults[fault] += 1
            if drop:
                continue
        yield pair
    if faults:
        what_then = "removed" if drop else "kept in their places"
        print(f"{split}: {faults.total()} of {total} items are invalid, {what_then}: {listed(faults)}", flush=True)


def listed(counts: Counter) -> str:
    """Reasons with their counts, in alphabetical order."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())) or "none"


def make_tokens(corpus: "ParallelCorpus", options: Namespace, text: Path, folder: Path) -> None:
    """Write the tokens of all splits, and references (raw text) of all splits except train.

    Reports how many lines of valid detokenising does not restore.
    """
    (folder / RAW).mkdir()
    splits = {}
    for split, total in splits_of(text).items():
        rows = zip(_tokenised(corpus, options, text, split, total), read_rows(text, split, options.kept_sides))
        if split == "train":
            splits |= _write_training(corpus, options, folder, rows, total)
        else:
            splits[split] = _write_held_out(corpus, options, folder, rows, split)
    write_splits(folder, splits)


def _tokenised(corpus: "ParallelCorpus", options: Namespace, text: Path, split: str, total: int) -> Iterator[Row]:
    return map_in_order(
        on_each_side,
        (corpus.tokenizer_of(options), [(side, options.lowercase) for side in options.kept_sides]),
        read_rows(text, split, options.kept_sides),
        workers=options.workers,
        label=f"tokenising {split}",
        total=total,
    )


def _write_training(
    corpus: "ParallelCorpus", options: Namespace, folder: Path, rows: Iterator[tuple[Row, Row]], total: int
) -> dict[str, int]:
    """Write train, and valid if it is taken from train. Returns their numbers of rows."""
    limits = {name: getattr(options, name) for name in ("min_length", "max_length", "max_ratio")}
    interval = corpus.validation_interval(options)
    dropped: Counter = Counter()
    num_kept = 0
    with ExitStack() as stack:
        train = stack.enter_context(RowWriter(folder, "train", options.kept_sides))
        valid = stack.enter_context(_HeldOut(corpus, options, folder, "valid")) if interval else None
        for tokens, raw in rows:
            if fault := length_fault(tokens, **limits):
                dropped[fault] += 1
                continue
            num_kept += 1
            if valid and num_kept % interval == 0:
                valid.write(tokens, raw)
            else:
                train.write(tokens)
    unit = "pairs" if len(options.kept_sides) > 1 else "lines"
    print(f"train: {num_kept} of {total} {unit} kept; dropped: {listed(dropped)}", flush=True)
    splits = {"train": train.num_rows, **({"valid": valid.num_rows} if valid else {})}
    if not all(splits.values()):
        raise DataError(
            f"the filter left no training pair: see {', '.join(f'--{name}'.replace('_', '-') for name in limits)}"
            if not num_kept
            else f"the filter left {num_kept} training pairs, too few for valid, one in {interval} of them"
        )
    return splits


def _write_held_out(
    corpus: "ParallelCorpus", options: Namespace, folder: Path, rows: Iterator[tuple[Row, Row]], split: str
) -> int:
    num_empty = 0
    with _HeldOut(corpus, options, folder, split) as held_out:
        for tokens, raw in rows:
            num_empty += not all(tokens)
            held_out.write(tokens, raw)
    if num_empty:
        unit = "pairs with an empty side" if len(options.kept_sides) > 1 else "empty lines"
        print(f"{split}: {num_empty} {unit}, kept in their places", flush=True)
    return held_out.num_rows


class _HeldOut(ExitStack):
    """Writes tokens and references of a held-out split. Counts lines of valid that detokenising does not restore."""

    def __init__(self, corpus: "ParallelCorpus", options: Namespace, folder: Path, split: str) -> None:
        super().__init__()
        self.reference = on_each_side(corpus.reference_of(options), [(side,) for side in options.kept_sides])
        self.tokens = self.enter_context(RowWriter(folder, split, options.kept_sides))
        self.raw = self.enter_context(RowWriter(folder / RAW, split, options.kept_sides))
        is_moses = corpus.words_of_text(options)["tokenizer"] == "moses"
        measured = options.kept_sides if split == "valid" and is_moses else ()
        self.joiners = {side: corpus.joiner(side) for side in measured}
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
            self.num_changed[side] += join(own) != (line.lower() if self.lowercase else line)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> bool:
        for side, num_changed in self.num_changed.items() if kind is None else ():
            print(
                f"valid.{side}: tokenising and detokenising gives {self.num_rows - num_changed:,} of {self.num_rows:,} "
                f"lines back; {num_changed:,} are changed",
                flush=True,
            )
        return super().__exit__(kind, *error)
