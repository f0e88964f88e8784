"""Pictures by matplotlib, which is imported only when one is drawn: its import is slow and logs much."""

from pathlib import Path
from typing import TYPE_CHECKING, Tuple

from fairseq_plugins.flags.written_file import replaced_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_picture(*, inches: Tuple[float, float] = (7, 4.2)) -> "Figure":
    """An empty picture of the given width and height."""
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def save_picture(picture: "Figure", path: Path, *, dots_per_inch: int = 150) -> None:
    """Write a picture in the format of the path's suffix."""
    with replaced_file(path) as aside:
        picture.savefig(aside, dpi=dots_per_inch)
