"""Subwords: the model that was learnt on both sides of train, and every split in its pieces."""

import itertools
from argparse import Namespace
from pathlib import Path

from . import subwords
from .errors import note
from .lines import map_in_order, progress, read_lines, read_rows, write_rows
from .make_text import splits_of, write_splits
from .tokens import on_each_side


def make_subwords(symbols: tuple[str, ...], options: Namespace, tokens: Path, folder: Path) -> None:
    """Write the model and the pieces; ``symbols`` stay whole."""
    splits = splits_of(tokens)
    model = folder / subwords.KINDS[options.bpe].file
    sides = [read_lines(tokens / f"train.{side}") for side in options.kept_sides]
    with progress(itertools.chain(*sides), total=2 * splits["train"], desc="counting words", unit=" lines") as train:
        note(f"learning {options.merges} merges with {options.bpe}")
        subwords.learn(options.bpe, train, options.merges, model, symbols)
    for split, total in splits.items():
        rows = map_in_order(
            on_each_side,
            (subwords.load, [(options.bpe, model)] * len(options.kept_sides)),
            read_rows(tokens, split, options.kept_sides),
            workers=options.workers,
            label=f"splitting {split}",
            total=total,
        )
        write_rows(folder, split, options.kept_sides, rows)
    write_splits(folder, splits)
