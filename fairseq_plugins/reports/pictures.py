"""Pictures by matplotlib, which is imported only when one is drawn: its import is slow and logs much."""

from pathlib import Path
from typing import TYPE_CHECKING, Tuple

from fairseq_plugins.flags.written_file import replaced_file
from fairseq_plugins.reports.user_text import printable

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150


def new_picture(*, inches: Tuple[float, float] = (7, 4.2)) -> "Figure":
    """An empty picture of the given width and height."""
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def as_label(text: str) -> str:
    """A text of a user's as a picture shows it.

    Matplotlib takes dollar signs for formulas, leaves labels that begin with an underscore out of legends, and draws no
    controls.
    """
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def write_plain_numbers(axis: "Axis") -> None:
    """Write the numbers of a logarithmic axis without powers, and so many that they do not touch."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    lowest, highest = sorted(axis.get_view_interval())
    is_wide = highest > 10 * lowest
    if is_wide:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter() if is_wide else ScalarFormatter())


def save_picture(picture: "Figure", path: Path) -> None:
    """Write a picture in the format of the path's suffix."""
    with replaced_file(path) as aside:
        picture.savefig(aside, dpi=DOTS_PER_INCH)
