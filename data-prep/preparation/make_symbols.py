"""The step from trees to symbols. Imported on use, because fairseq_plugins takes seconds to import."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from fairseq_plugins.trees.trees import KEPT_WORDS, Linearisation, Tree, count_words, frequent_words, read_tree

from .lines import DataError, progress, read_lines, write_lines, write_rows
from .steps import splits_of, write_splits


def make_symbols(options: Namespace, text: Path, folder: Path) -> None:
    """Write the words that are frequent in train, and a line of symbols for each tree of all splits."""
    (side,) = options.kept_sides
    splits = splits_of(text)

    def trees(split: str, doing: str) -> Iterator[Tree]:
        lines = read_lines(text / f"{split}.{side}")
        return map(read_tree, progress(lines, desc=f"{doing} {split}", total=splits[split], unit=" trees"))

    kept = frequent_words(count_words(trees("train", "counting words of")), min_count=options.min_count)
    if not kept:
        raise DataError(f"train has no word {options.min_count} times: give a smaller --threshold")
    write_lines(folder / KEPT_WORDS, kept)
    linearisation = Linearisation(kept)
    classes, labels = set(), set()
    for split in splits:
        rows = []
        for tree in trees(split, "writing symbols of"):
            symbols = linearisation.symbols(tree)
            rows.append((" ".join(symbols),))
            if split == "train":
                labels.update(symbol[1:] for symbol in symbols if symbol[0] == "(")
                classes.update(symbol for symbol in symbols if symbol[0] == "<")
        write_rows(folder, split, options.kept_sides, rows)
    write_splits(folder, splits)
    print(f"train: {len(kept)} words, {len(classes)} unknown classes, {len(labels)} labels", flush=True)
