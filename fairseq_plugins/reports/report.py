"""A report: figures as a table in Markdown, as JSON for machines, and as a picture; each with where it comes from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional

from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.provenance import provenance
from fairseq_plugins.reports.written_file import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured.

    Attributes:
        text: tables in Markdown, with what explains them.
        figures: the same for machines; the names of the origin (date, code, machine, command) are left to it.
        command: what was typed.
        picture: where there is one.
    """

    text: str
    figures: Dict[str, Any]
    command: str
    picture: Optional["Figure"] = None

    def write(self, *, table: Path, figures: Path, picture: Optional[Path] = None) -> str:
        """Write the files, whose folders are made if missing; return the text with its origin."""
        origin = {**provenance(), "command": self.command}
        text = "{}\n\n`{command}`; {date}, {code}; {machine}.\n".format(self.text.rstrip("\n"), **origin)
        for path in filter(None, (table, figures, picture)):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(table, text)
        write_text(figures, json.dumps({**origin, **self.figures}, indent=1) + "\n")
        if picture is not None and self.picture is not None:
            save_picture(self.picture, picture)
        return text
