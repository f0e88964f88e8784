"""The first step: the raw text of every split, one line a row and side."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

from .corpus import Corpus
from .errors import DataError, note
from .lines import progress, write_rows

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
    """Write the sides that are kept; DataError if a split is empty."""
    note(f"reading {corpus.name} {options.subject}".rstrip())
    scratch = folder / "unpacked"
    scratch.mkdir()
    chosen = [options.sides.index(side) for side in options.kept_sides]
    splits = {}
    for split, rows in corpus.read(files, options, scratch).items():
        with progress(rows, desc=f"reading {split}", unit=" lines") as bar:
            kept = (tuple(row[number] for number in chosen) for row in bar)
            splits[split] = write_rows(folder, split, options.kept_sides, kept)
        if not splits[split]:
            raise DataError(f"nothing of {split} is left: see what was removed")
    shutil.rmtree(scratch)
    write_splits(folder, splits)
