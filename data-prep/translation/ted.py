"""The two file formats of the IWSLT campaigns' TED talks: tagged training text, and XML with numbered segments."""

import html
import html.entities
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import NamedTuple

from .errors import DataError
from .lines import Pair, clean
from .sources import text_lines

METADATA = re.compile(
    r"</?(?:url|keywords|speaker|talkid|title|description|reviewer|translator|doc)(?:\s[^>]*)?/?>", re.IGNORECASE
)
ENTITY = re.compile(r"&(#[0-9]+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
AMPERSAND = re.compile(f"&(?!{ENTITY.pattern[1:]})")
TAG = r"""/?[a-zA-Z][\w:.-]*(?:\s+[\w:.-]+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*\s*/?>"""
LESS_THAN = re.compile(rf"<(?!{TAG}|\?xml |!--|!DOCTYPE )")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # not in XML
UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")  # not from an entity


class Segment(NamedTuple):
    """A line of a talk in an XML file."""

    talk: str
    number: str
    text: str


def training_pair(source: bytes, target: bytes, source_name: object, target_name: object) -> Pair:
    """The transcripts of two ``train.tags`` files: all lines that do not begin with a tag of the talk's metadata."""
    sides = [_talks(text_lines(content, name)) for content, name in [(source, source_name), (target, target_name)]]
    pair = Pair(*([ENTITY.sub(_character, text) for talk in side for _, text in talk] for side in sides))
    if not pair.source or not pair.target:
        raise DataError(f"{target_name if pair.source else source_name} has no line besides its tags")
    same_talks = len(sides[0]) == len(sides[1])
    if len(pair.source) != len(pair.target) or (same_talks and any(len(a) != len(b) for a, b in zip(*sides))):
        raise DataError(_first_difference(*sides, source_name, target_name))
    return Pair(*([clean(line) for line in side] for side in pair))


def _talks(lines: list[str]) -> list[list[tuple[int, str]]]:
    """Transcripts, numbered as in the file, grouped by what metadata stands between."""
    talks: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        if not METADATA.match(line):
            talks[-1].append((number, line))
        elif talks[-1]:
            talks.append([])
    return [talk for talk in talks if talk]


def _first_difference(sources: list, targets: list, source_name: object, target_name: object) -> str:
    totals = "{} lines against {} in all".format(*(sum(map(len, talks)) for talks in (sources, targets)))
    for source, target in zip(sources, targets):
        if len(source) != len(target):
            return (
                f"{source_name}:{source[0][0]}: {len(source)} lines up to the next tag, "
                f"but {len(target)} from {target_name}:{target[0][0]} ({totals})"
            )
    return f"{source_name} and {target_name} do not have the same talks ({totals})"


def segments(content: bytes, name: object) -> list[Segment]:
    """The segments of an XML file, in its order; the text of tags inside a segment is part of it."""
    try:
        root = ElementTree.fromstring(repair("\n".join(text_lines(content, name))))
    except ElementTree.ParseError as error:
        raise DataError(f"{name}:{error.position[0]}: not well-formed XML ({error})") from None
    found = list(_segments(root))
    if not found:
        raise DataError(f"{name} has no segment: <seg> is expected in <doc>")
    return found


def _segments(root: ElementTree.Element) -> Iterator[Segment]:
    for talk in root.iter("doc"):
        for segment in talk.iter("seg"):
            text = " ".join("".join(segment.itertext()).split("\n"))
            yield Segment(talk.get("docid", ""), segment.get("id", ""), clean(text))


def repair(text: str) -> str:
    """``text`` with its bare ``&`` and ``<``, HTML's entities and control characters made into well-formed XML.

    Line breaks stay where they are.
    """
    text = CONTROL.sub(" ", text)
    text = AMPERSAND.sub("&amp;", text)
    text = LESS_THAN.sub("&lt;", text)
    return ENTITY.sub(_as_xml, text)


def _character(entity: re.Match) -> str:
    """What an entity stands for; itself where there is no such entity, a space for what could break the line."""
    if entity[1].startswith("#"):
        character = html.unescape(entity[0])
    else:
        character = html.entities.html5.get(f"{entity[1]};", entity[0])
    return UNFIT.sub(" ", character)


def _as_xml(entity: re.Match) -> str:
    return html.escape(_character(entity), quote=False)


def evaluation_pair(source: bytes, target: bytes, source_name: object, target_name: object) -> Pair:
    """The segments of two XML files, which must have the same talks and numbers."""
    sides = [segments(content, name) for content, name in [(source, source_name), (target, target_name)]]
    for ours, theirs in zip(*sides):
        if ours[:2] != theirs[:2]:
            raise DataError(
                f"{source_name}: segment {ours.number} of talk {ours.talk} "
                f"stands opposite segment {theirs.number} of talk {theirs.talk} of {target_name}"
            )
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{source_name} has {len(sides[0])} segments, {target_name} has {len(sides[1])}")
    return Pair(*([segment.text for segment in side] for side in sides))
