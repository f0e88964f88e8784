"""Reports: tables in Markdown, JSON, and pictures; differences between systems.

Shapes: K samples of the bootstrap.
"""

import json
import math
import statistics
import unicodedata
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Literal, Mapping, Optional, Sequence, Tuple

import numpy as np
from tabulate import tabulate

from fairseq_plugins.files import replaced_file, write_text
from fairseq_plugins.metrics.corpus import paired_difference
from fairseq_plugins.reports.provenance import with_origin

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


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


def json_text(
    figures: Mapping[str, Any], *, indent: Optional[int] = None, letters: Literal["escaped", "kept"] = "escaped"
) -> str:
    """Figures in JSON: nested dictionaries, lists and tuples of strings, numbers and None.

    ``null`` replaces inf and NaN, which JSON does not have. ``letters`` says whether characters beyond ASCII are
    escaped.
    """
    return json.dumps(_finite(figures), indent=indent, ensure_ascii=letters == "escaped", allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value


# Pictures. matplotlib is imported only when one is drawn, because its import is slow and logs much.

DOTS_PER_INCH = 150


def new_picture(*, inches: Tuple[float, float] = (7, 4.2)) -> "Figure":
    """An empty picture of the given width and height."""
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def as_label(text: str) -> str:
    """A text of a user as a label in a picture.

    Matplotlib reads dollar signs as formulas, omits labels with a leading underscore from legends, and cannot draw
    control characters.
    """
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


_STEPS: Sequence[Sequence[float]] = (
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 2, 5),
    (1, 3),
    (1,),
    [1 + n / 10 for n in range(90)],
    [1 + n / 100 for n in range(900)],
)
"""Ticks of a decade, in the order in which they are tried."""


def enclose_logarithmically(axis: "Axis", values: Iterable[float]) -> None:
    """Limit a logarithmic axis to ticks, in plain numbers, that enclose the finite values above zero."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    found = [value for value in values if 0 < value < math.inf]
    if not found:
        return
    powers = range(math.floor(math.log10(min(found))) - 1, math.ceil(math.log10(max(found))) + 2)
    ticks: List[float] = []
    for steps in _STEPS:
        known = [step * 10.0**power for power in powers for step in steps]
        first, last = max(one for one in known if one <= min(found)), min(one for one in known if one >= max(found))
        ticks = [one for one in known if first <= one <= last]
        if 4 <= len(ticks) <= 10:
            break
    every = math.ceil(len(ticks) / 10)
    ticks = [*ticks[:-1:every], ticks[-1]]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,g}"))
    if len(ticks) > 1:
        limit = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
        limit(ticks[0], ticks[-1])


def save_picture(picture: "Figure", path: Path) -> None:
    """Write a picture in the format of the path's suffix. Boxes stand for letters that its font lacks."""
    with warnings.catch_warnings(), replaced_file(path) as aside:
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        picture.savefig(aside, dpi=DOTS_PER_INCH)


@dataclass(frozen=True)
class Report:
    """What a command found.

    Attributes:
        figures: for JSON. The names of the provenance (date, code, machine, command) are reserved.
        text: the same as tables in Markdown, with explanations.
        draw: makes the picture, if there is one.
    """

    figures: Mapping[str, Any]
    text: str
    draw: "Optional[Callable[[], Figure]]" = None

    def write(self, folder: Path, *, command: str, name: str, figures: str = "", picture: str = "") -> str:
        """Write text, JSON and picture with their provenance into a folder, which is created if missing.

        ``command`` is the command line of the user. ``name`` is that of the files without suffix; ``figures`` and
        ``picture`` are other names of these two, with suffix. Returns the text with its provenance.
        """
        origin = with_origin({}, command=command)
        text = "{}\n\n`{command}`; {date}, {code}; {machine}.\n".format(self.text.rstrip("\n"), **origin)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{name}.md", text)
        write_figures(folder / (figures or f"{name}.json"), self.figures, command=command)
        if self.draw is not None:
            save_picture(self.draw(), folder / (picture or f"{name}.png"))
        return text


def write_figures(path: Path, figures: Mapping[str, Any], *, command: str) -> None:
    """Write figures in JSON with their provenance; ``command`` is the command line of the user."""
    write_text(path, f"{json_text(with_origin(figures, command=command), indent=1)}\n")


# Differences between systems.


def differences(scores: Mapping[str, Mapping[str, np.ndarray]], *, baseline: str) -> List[Dict[str, Any]]:
    """Difference of each system from the baseline by each metric, over all runs of the system together.

    Scores are by metric and system, (1 + K), see :func:`~fairseq_plugins.metrics.corpus.bootstrap_means`.
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
    return "p < 0.001" if p < 0.0005 else f"p = {p:.3f}"
