"""The result of a command: text, figures in JSON and a picture, with their provenance."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Optional

from fairseq_plugins.files import write_text
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.provenance import origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Report:
    """The result of a command.

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

        ``command`` is the command line of the user. ``name`` names the files, without suffix. ``figures`` and
        ``picture`` are other names for these two files, with suffix. Returns the text with its provenance.
        """
        text = "{}\n\n`{command}`; {date}, {code}; {machine}.\n".format(self.text.rstrip("\n"), **origin(command))
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{name}.md", text)
        write_figures(folder / (figures or f"{name}.json"), self.figures, command=command)
        if self.draw is not None:
            save_picture(self.draw(), folder / (picture or f"{name}.png"))
        return text


def write_figures(path: Path, figures: Mapping[str, Any], *, command: str) -> None:
    """Write figures in JSON with their provenance; ``command`` is the command line of the user."""
    write_text(path, f"{json_text({**origin(command), **figures}, indent=1)}\n")


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
