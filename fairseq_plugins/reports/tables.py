"""Tables in Markdown."""

import math
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Literal, Mapping, Optional, Sequence

from tabulate import tabulate

from fairseq_plugins.reports.user_text import printable


@dataclass(frozen=True)
class Cell:
    """A figure of a table.

    Attributes:
        value: the figure.
        format: of the figure, as ``format`` takes it.
        interval: half the width of its 95 % confidence interval, where it is known.
        mean: "taken" over the runs of one name, or "none".
    """

    value: float
    format: str = ".2f"
    interval: Optional[float] = None
    mean: Literal["taken", "none"] = "taken"

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" +- {self.interval:.2f}"
        return f"{self.value:{self.format}}{interval}"


def as_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column stands to the left and whose others stand to the right.

    Cells are written as ``str`` has them, in one line, None as an empty cell.
    """
    headers, *cells = ([_cell(value) for value in row] for row in (columns, *rows))
    alignment = ["left", *["right"] * (len(columns) - 1)]
    return tabulate(cells, headers=headers, tablefmt="pipe", colalign=alignment, disable_numparse=True)


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value)).replace("|", r"\|")


def summary_names(name: str) -> List[str]:
    """Names of the rows of :func:`summary_rows`."""
    return [f"{name}, mean", f"{name}, standard deviation"]


def summary_rows(name: str, runs: Sequence[Mapping[str, Cell]]) -> Dict[str, Dict[str, Cell]]:
    """Mean and standard deviation over the runs of one name, none for a single run, by the names of their rows."""
    if len(runs) < 2:
        return {}
    columns = [
        column for column, cell in runs[0].items() if cell.mean == "taken" and all(column in cells for cells in runs)
    ]
    return {
        row: {column: Cell(of([run[column].value for run in runs]), runs[0][column].format) for column in columns}
        for row, of in zip(summary_names(name), (statistics.mean, _deviation))
    }


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def table_of_runs(
    found: Sequence[Dict[str, Any]], cells: Callable[[Dict[str, Any]], Mapping[str, Cell]], *, column: str
) -> str:
    """A line for each run and, where there are several of one name, their mean and standard deviation.

    Args:
        found: figures of the runs, each with its ``name``; those of one name stand together.
        cells: what the table has of a run, by the names of the columns.
        column: what the first one is called, that of the names.
    """
    rows: List[Mapping[str, object]] = []
    for name in dict.fromkeys(figures["name"] for figures in found):
        same = [cells(figures) for figures in found if figures["name"] == name]
        rows += [{column: name, **of_run} for of_run in same]
        rows += [{column: row, **of_all} for row, of_all in summary_rows(name, same).items()]
    columns = list(dict.fromkeys(one for row in rows for one in row))
    return as_table(columns, [[row.get(one) for one in columns] for row in rows])
