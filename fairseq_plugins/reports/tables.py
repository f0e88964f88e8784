"""Tables in Markdown."""

from typing import Iterable, Sequence

from tabulate import tabulate


def as_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column stands to the left and whose others stand to the right.

    Cells are written as ``str`` has them, None as an empty cell.
    """
    cells = [["" if cell is None else str(cell).replace("|", r"\|") for cell in row] for row in rows]
    alignment = ["left", *["right"] * (len(columns) - 1)]
    return tabulate(cells, headers=columns, tablefmt="pipe", colalign=alignment, disable_numparse=True)
