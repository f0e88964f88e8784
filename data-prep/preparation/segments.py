"""File formats of the IWSLT and WMT campaigns: tagged training text, XML and SGML with numbered segments."""

import html
import html.entities
import html.parser
import itertools
import re
from collections import deque
from collections.abc import Container, Iterator
from typing import NamedTuple

from .lines import DataError, Row, clean
from .sources import Text, file_lines

METADATA = re.compile(
    r"</?(url|keywords|speaker|talkid|title|description|reviewer|translator|doc)(?:\s[^>]*)?/?>", re.IGNORECASE
)
ENTITY = re.compile(r"&(#[0-9]+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
AMPERSAND = re.compile(f"&(?!{ENTITY.pattern[1:]})")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # not in XML
UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")  # could break a line, even as an entity

VALUE = r"""\s*=\s*(?:"[^"<]*"|'[^'<]*'|[^\s"'<>=]+)"""
LESS_THAN = re.compile(rf"<(?!/?[a-zA-Z][\w:-]*(?:\s+[\w:.-]+{VALUE})*\s*/?>|\?xml |!--|!DOCTYPE )")
SETS = ("srcset", "refset", "tstset")


class Segment(NamedTuple):
    """A numbered line of a talk or document."""

    talk: str
    number: str
    text: str


def training_pairs(source: Text, target: Text, *, kept_tags: Container[str] = ()) -> Iterator[Row]:
    """Pairs of lines of two ``train.tags`` files, without lines that begin with a tag of a talk's metadata.

    The content of ``kept_tags`` (``title``, ``description``) is also text. One talk of each file is in memory at a
    time. DataError at the end if the files do not match.
    """
    sides = [_Transcripts(text, kept_tags) for text in (source, target)]
    difference = ""
    waiting: list[deque[str]] = [deque(), deque()]
    for talks in itertools.zip_longest(*sides):
        for texts, talk in zip(waiting, talks):
            texts.extend(ENTITY.sub(_character, text) for _, text in talk or [])
        if None not in talks and not difference and len(talks[0]) != len(talks[1]):
            difference = (
                f"{source}:{talks[0][0][0]}: {len(talks[0])} lines up to the next tag, "
                f"but {len(talks[1])} from {target}:{talks[1][0][0]}"
            )
        while all(waiting):
            yield clean(waiting[0].popleft()), clean(waiting[1].popleft())
    for side in sides:
        if not side.num_lines:
            raise DataError(f"{side.text} has no line besides its tags")
    totals = [side.num_lines for side in sides]
    if totals[0] != totals[1] or (difference and sides[0].num_talks == sides[1].num_talks):
        difference = difference or f"{source} and {target} do not have the same talks"
        raise DataError(f"{difference} ({totals[0]} lines against {totals[1]} in all)")


class _Transcripts:
    """Transcripts of a file: lists of numbered lines between metadata. Counts lines and talks."""

    def __init__(self, text: Text, kept_tags: Container[str]) -> None:
        self.text, self.kept_tags = text, kept_tags
        self.num_lines = self.num_talks = 0

    def __iter__(self) -> Iterator[list[tuple[int, str]]]:
        talk: list[tuple[int, str]] = []
        for number, line in enumerate(file_lines(self.text), 1):
            tag = METADATA.match(line)
            if tag and tag[1].lower() in self.kept_tags:
                line, tag = METADATA.sub("", line), None
            if not tag:
                talk.append((number, line))
                self.num_lines += 1
            elif talk:
                self.num_talks += 1
                yield talk
                talk = []
        if talk:
            self.num_talks += 1
            yield talk


def repair(text: str) -> str:
    """``text`` with its bare ``&`` and ``<``, HTML's entities and control characters made into well-formed XML.

    Line breaks stay where they are.
    """
    text = CONTROL.sub(" ", text)
    text = AMPERSAND.sub("&amp;", text)
    text = LESS_THAN.sub("&lt;", text)
    return ENTITY.sub(_as_xml, text)


def _character(entity: re.Match) -> str:
    """The character of an entity, or a space if it could break the line. Unknown entities stay as they are."""
    if entity[1].startswith("#"):
        character = html.unescape(entity[0])
    else:
        character = html.entities.html5.get(f"{entity[1]};", entity[0])
    return UNFIT.sub(" ", character)


def _as_xml(entity: re.Match) -> str:
    return html.escape(_character(entity), quote=False)


# XML and SGML of development and test sets. SGML is not XML, so a tolerant HTML parser reads both.


def read_segments(text: Text) -> list[Segment]:
    """Segments of an XML or SGML file in their order. Tags inside a segment are removed, their text is kept."""
    reader = _SegmentReader(text)
    reader.feed(repair("\n".join(file_lines(text))))
    reader.close()
    if reader.place:
        raise reader.error("is not closed: is the file truncated?")
    for tag in ("doc", *SETS):
        if tag in reader.open:
            raise DataError(f"{text}: <{tag}> is not closed: is the file truncated?")
    if not reader.found:
        raise DataError(f"{text} has no segment: <seg> is expected in <doc>")
    return reader.found


def segment_pairs(source: Text, target: Text) -> list[Row]:
    """Texts of segments, which must have the same talks and numbers on both sides."""
    sources, targets = read_segments(source), read_segments(target)
    for ours, theirs in zip(sources, targets):
        if ours[:2] != theirs[:2]:
            raise DataError(
                f"{source}: segment {ours.number} of talk {ours.talk} "
                f"stands opposite segment {theirs.number} of talk {theirs.talk} of {target}"
            )
    if len(sources) != len(targets):
        raise DataError(f"{source} has {len(sources)} segments, {target} has {len(targets)}")
    return [(ours.text, theirs.text) for ours, theirs in zip(sources, targets)]


class _SegmentReader(html.parser.HTMLParser):
    def __init__(self, name: object) -> None:
        super().__init__(convert_charrefs=True)
        self.name = name
        self.found: list[Segment] = []
        self.open: set[str] = set()  # tags of documents and sets
        self.document = ""
        self.place: tuple[int, str] | None = None  # line and number of the open segment
        self.text: list[str] = []

    def set_cdata_mode(self, *args: object, **kwargs: object) -> None:
        """Tags such as <title> and <script> have ordinary content here, other than in HTML."""

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
