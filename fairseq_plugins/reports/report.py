"""A report: figures as a table in Markdown, as JSON for machines, and as a picture; each with where it comes from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional

from fairseq_plugins.flags.written_file import write_text
from fairseq_plugins.reports.json_text import json_text
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.provenance import with_origin

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

    def write(self, folder: Path, *, name: str, figures: str = "", picture: str = "") -> str:
        """Write the files; return the text with its origin.

        Args:
            folder: made if missing.
            name: of the table, and of the other files, without suffix.
            figures, picture: names of these files, suffix included, where they are others.
        """
        recorded = with_origin(self.figures, command=self.command)
        text = "{}\n\n`{command}`; {date}, {code}; {machine}.\n".format(self.text.rstrip("\n"), **recorded)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{name}.md", text)
        content = json_text(recorded, indent=1)
        write_text(folder / (figures or f"{name}.json"), f"{content}\n")
        if self.picture is not None:
            save_picture(self.picture, folder / (picture or f"{name}.png"))
        return text
