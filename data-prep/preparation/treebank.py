"""Trees of the Penn Treebank. Imported on use, because fairseq_plugins takes seconds to import."""

from collections.abc import Iterator
from pathlib import Path

from fairseq_plugins.trees.trees import clean_tree, read_trees

from .lines import PASS_OTHERS, DataError, Row
from .sources import file_lines


def cleaned_trees(path: Path) -> Iterator[Row]:
    """A row for each tree that has a word. DataError with the line where brackets do not match."""
    try:
        for tree in read_trees(file_lines(path, remedy=PASS_OTHERS), name=str(path)):
            if cleaned := clean_tree(tree):
                yield (str(cleaned),)
    except ValueError as error:
        raise DataError(f"{error}: {PASS_OTHERS}") from None
