"""The SGML of the WMT campaigns' development and test sets, which is no XML: read by a tolerant parser."""

import html.parser
import re
from pathlib import Path

from .errors import DataError
from .lines import Row, clean
from .sources import file_lines
from .ted import Segment, pair_segments, repair

VALUE = r"""\s*=\s*(?:"[^"<]*"|'[^'<]*'|[^\s"'<>=]+)"""
LESS_THAN = re.compile(rf"<(?!/?[a-zA-Z][\w:-]*(?:\s+[\w:.-]+{VALUE})*\s*/?>|\?xml |!--|!DOCTYPE )")
SETS = ("srcset", "refset", "tstset")


def segments(path: Path, name: object) -> list[Segment]:
    """The segments of a file, in its order; the text of tags inside a segment is part of it."""
    reader = _Reader(name)
    reader.feed(repair("\n".join(file_lines(path, name)), LESS_THAN))
    reader.close()
    if reader.place:
        raise reader.error("is not closed: is the file truncated?")
    for tag in ("doc", *SETS):
        if tag in reader.open:
            raise DataError(f"{name}: <{tag}> is not closed: is the file truncated?")
    if not reader.found:
        raise DataError(f"{name} has no segment: <seg> is expected in <doc>")
    return reader.found


def segment_pairs(source: Path, target: Path, source_name: object, target_name: object) -> list[Row]:
    """The texts of the segments of two files, which must have the same documents and numbers."""
    sides = [segments(path, name) for path, name in [(source, source_name), (target, target_name)]]
    return pair_segments(*sides, source_name, target_name)


class _Reader(html.parser.HTMLParser):
    def __init__(self, name: object) -> None:
        super().__init__(convert_charrefs=True)
        self.name = name
        self.found: list[Segment] = []
        self.open: set[str] = set()  # documents and sets
        self.document = ""
        self.place: tuple[int, str] | None = None  # line and number of the open segment
        self.text: list[str] = []

    def set_cdata_mode(self, *args: object, **kwargs: object) -> None:
        """No tag has content of its own kind here, though HTML's <title> or <script> have."""

    def error(self, message: str) -> DataError:
        line, number = self.place
        return DataError(f"{self.name}:{line}: segment {number} {message}")

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if self.place and tag in ("seg", "doc"):
            raise self.error("is not closed before the next one")
        if tag in ("doc", *SETS):
            self.open.add(tag)
        if tag == "doc":
            self.document = values.get("docid") or ""
        elif tag == "seg" and "doc" in self.open:
            self.place, self.text = (self.getpos()[0], values.get("id") or ""), []

    def handle_endtag(self, tag: str) -> None:
        if self.place and tag == "seg":
            text = " ".join("".join(self.text).split("\n"))
            self.found.append(Segment(self.document, self.place[1], clean(text)))
            self.place = None
        elif self.place and tag == "doc":
            raise self.error("is not closed before the document")
        self.open.discard(tag)

    def handle_data(self, data: str) -> None:
        if self.place:
            self.text.append(data)
