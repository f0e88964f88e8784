"""Tables in Markdown: of runs and their means, and of differences between systems.

Shapes: K samples of the bootstrap.
"""

import math
import statistics
import unicodedata
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterable, List, Literal, Mapping, Optional, Sequence

import numpy as np
from tabulate import tabulate

from fairseq_plugins.metrics.bootstrap import paired_difference


def printable(text: str) -> str:
    """A text of a user in one line. U+FFFD replaces characters that cannot be shown, except spaces of any kind."""
    return "".join(one if one.isprintable() or unicodedata.category(one) == "Zs" else "\ufffd" for one in text)


@dataclass(frozen=True)
class Cell:
    """A figure of a table, its format specification, and half the width of its 95 % confidence interval, if known.

    ``mean`` says whether the mean over the runs of one name is "taken".
    """

    value: float
    format: str = ".2f"
    interval: Optional[float] = None
    mean: Literal["taken", "none"] = "taken"

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" +- {self.interval:.2f}"
        return f"{self.value:{self.format}}{interval}"


def as_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with its first column aligned to the left and all others to the right.

    Cells are converted with ``str`` and put in one line. None is an empty cell.
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
    """Mean and standard deviation over the runs of one name, by the names of their rows. Empty for a single run."""
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
    """A line for each run, with mean and standard deviation of several runs of one name.

    ``found`` are figures of the runs, including their ``name``, and ``cells`` makes cells by column of them. The first
    column has the names under the title ``column``.
    """
    rows: List[Mapping[str, object]] = []
    for name in dict.fromkeys(figures["name"] for figures in found):
        same = [cells(figures) for figures in found if figures["name"] == name]
        rows += [{column: name, **of_run} for of_run in same]
        rows += [{column: row, **of_all} for row, of_all in summary_rows(name, same).items()]
    columns = list(dict.fromkeys(one for row in rows for one in row))
    return as_table(columns, [[row.get(one) for one in columns] for row in rows])


# Differences between systems.


def differences(scores: Mapping[str, Mapping[str, np.ndarray]], *, baseline: str) -> List[Dict[str, Any]]:
    """Difference of each system from the baseline by each metric, over all runs of the system together.

    Scores are by metric and system, (1 + K), see :func:`~fairseq_plugins.metrics.bootstrap.bootstrap_means`.
    """
    others = [name for name in next(iter(scores.values())) if name != baseline]
    return [
        {
            "name": name,
            "differences": {
                metric: asdict(paired_difference(by_system[name], by_system[baseline]))
                for metric, by_system in scores.items()
            },
        }
        for name in others
    ]


SENTENCES = "Paired bootstrap over sentences (a drawn sentence brings the outputs of all seeds), two-sided p"
"""How intervals and p of differences were found, unless a table says otherwise."""


def differences_as_markdown(found: Sequence[Dict[str, Any]], *, baseline: str, caption: str = SENTENCES) -> str:
    """A line for each system except the baseline. The caption says how intervals and p were found."""
    rows = [
        [
            one["name"],
            *(f"{x['value']:+.2f} +- {x['interval']:.2f} ({_p(x['p'])})" for x in one["differences"].values()),
        ]
        for one in found
    ]
    columns = [f"minus {baseline}", *(found[0]["differences"] if found else ())]
    return f"{caption}:\n\n{as_table(columns, rows)}"


def _p(p: float) -> str:
    if math.isnan(p):
        return "no p"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
