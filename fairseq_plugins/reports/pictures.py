"""Pictures. matplotlib is imported only when one is drawn, because its import is slow and logs much."""

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, List, Sequence, Tuple

from fairseq_plugins.files import replaced_file
from fairseq_plugins.reports.tables import printable

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

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
