"""The first step: the raw text of every split, one line a row and side."""

import json
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .corpus import Corpus
from .errors import DataError, note
from .lines import Row, progress, read_rows, write_rows
from .moses import TokenSigns, composed

SPLITS = "splits.json"  # of a step's folder: the splits in their order, with their numbers of rows


def splits_of(folder: Path) -> dict[str, int]:
    """Numbers of rows of the splits that a step wrote: train, valid, test, then the others."""
    try:
        return json.loads((folder / SPLITS).read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{folder / SPLITS} is damaged: delete {folder} and run again") from None


def write_splits(folder: Path, splits: dict[str, int]) -> None:
    """Record what a step wrote, for ``splits_of``."""
    (folder / SPLITS).write_text(json.dumps(splits), encoding="utf-8")


def make_text(corpus: Corpus, files: dict[str, Path], options: Namespace, folder: Path) -> None:
    """Write the sides that are kept, in the composed form of Unicode if asked for; DataError if a split is empty.

    Warns of text that looks tokenised, and of lines of test that are in train.
    """
    note(f"reading {corpus.name} {options.subject}".rstrip())
    scratch = folder / "unpacked"
    scratch.mkdir()
    chosen = [options.sides.index(side) for side in options.kept_sides]
    signs = TokenSigns(is_moses=corpus.words_of_text(options)["tokenizer"] == "moses")

    def kept(row: Row) -> Row:
        sides = tuple(composed(row[number]) if options.nfc else row[number] for number in chosen)
        for line in sides:
            signs.see(line)
        return sides

    splits = {}
    for split, rows in corpus.read(files, options, scratch).items():
        with progress(rows, desc=f"reading {split}", unit=" lines") as bar:
            splits[split] = write_rows(folder, split, options.kept_sides, map(kept, bar))
        if not splits[split]:
            raise DataError(f"nothing of {split} is left: see what was removed")
    shutil.rmtree(scratch)
    write_splits(folder, splits)
    if warning := signs.warning(f"the text of {corpus.name}"):
        note(f"warning: {warning}")
    if num_common := _num_common(folder, options):
        note(
            f"warning: test: {num_common:,} of its {splits['test']:,} lines are in train as well: figures on them "
            "look better than on new text"
        )


def _num_common(folder: Path, options: Namespace) -> int:
    """How many rows of test with a word in them are in train; only their hashes are held."""

    def hashes(split: str) -> Iterator[int]:
        return (hash(row) for row in read_rows(folder, split, options.kept_sides) if any(row))

    in_test = Counter(hashes("test"))
    return sum(in_test[one] for one in in_test.keys() & set(filter(in_test.__contains__, hashes("train"))))
