"""The formats of TED talks: tagged training text, XML with numbered segments."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from iwslt_files import tagged, xml
from preparation import ted
from preparation.errors import DataError


@pytest.fixture
def of_files(tmp_path: Path) -> Callable[..., list[tuple[str, str]]]:
    """``of_files(read, source, target)``: the pairs that ``read`` finds in two files S and T of these contents."""

    def read_files(read: Callable, source: bytes, target: bytes) -> list[tuple[str, str]]:
        paths = [tmp_path / "S", tmp_path / "T"]
        for path, content in zip(paths, [source, target]):
            path.write_bytes(content)
        return list(read(*paths, "S", "T"))

    return read_files


def test_training_pairs_tell_where_talks_differ(of_files: Callable) -> None:
    source = tagged([["a", "b"], ["c", "d"], ["e"]])
    target = tagged([["a", "b"], ["c"], ["e"]])
    with pytest.raises(DataError) as error:
        of_files(ted.training_pairs, source, target)
    assert str(error.value) == "S:17: 2 lines up to the next tag, but 1 from T:17 (5 lines against 4 in all)"
    with pytest.raises(DataError, match="T has no line besides its tags"):
        of_files(ted.training_pairs, source, tagged([[]]))
    with pytest.raises(DataError, match="T:3: not UTF-8 text"):
        of_files(ted.training_pairs, source, target.replace(b"A. Speaker", b"\xff"))


@pytest.mark.parametrize("last", [["f"], ["f", "g"]], ids=["equal totals", "other totals"])
def test_talks_of_other_lengths_are_refused_though_the_texts_may_be_as_long(
    of_files: Callable, last: list[str]
) -> None:
    source, target = tagged([["a"], ["b", "c"], ["d", "e"]]), tagged([["a"], ["b"], ["d", "e", *last]])
    total = 3 + len(last) + 1
    with pytest.raises(DataError) as error:
        of_files(ted.training_pairs, source, target)
    told = f"S:16: 2 lines up to the next tag, but 1 from T:16 (5 lines against {total} in all)"
    assert str(error.value) == told


def test_entities_of_training_text_do_not_break_lines(of_files: Callable) -> None:
    source = tagged([["a&NewLine;b &#10;&#x2028; c&#133;", "d &lt;x&gt; &amp;amp; &notit;"]])
    pairs = of_files(ted.training_pairs, source, source)
    assert [line for line, _ in pairs] == ["a b    c\u2026", "d <x> &amp; &notit;"]


def test_titles_can_be_text(of_files: Callable) -> None:
    source = tagged([["a"], ["b", "c"]])
    assert of_files(ted.training_pairs, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    texts = ["A <em>nested</em> title", "TED Talk Subtitles and Transcript: <b>x</b> & y"]
    read = partial(ted.training_pairs, kept_tags=("title", "description"))
    assert [line for line, _ in of_files(read, source, source)] == [*texts, "a", *texts, "b", "c"]
    with pytest.raises(DataError, match="S:5: 3 lines up to the next tag, but 4 from T:5"):
        of_files(read, source, tagged([["a", "b"], ["b", "c"]]))


def test_empty_lines_of_training_text_keep_their_places(of_files: Callable) -> None:
    pairs = of_files(ted.training_pairs, tagged([["a", "", "c"]], "\r\n"), tagged([["x", "y\u2028z", ""]]))
    assert pairs == [("a", "x"), ("", "y z"), ("c", "")]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Q & A", "Q & A"),
        ("Q&A; R&D;", "Q&A; R&D;"),
        ("&amp;lt; stays &lt;", "&lt; stays <"),
        ("&eacute;&nbsp;&#233;&#xe9;", "é\u00a0éé"),
        ("1 < 2 > 0 <3 <- a<b", "1 < 2 > 0 <3 <- a<b"),
        ("a <b>bold <i>and</i> more</b> c", "a bold and more c"),
        ("a <br/> b<!-- comment -->c", "a  bc"),
        ("a&#10;b&#0;c&#x2028;d\x01e\x00f&NewLine;g", "a b\ufffdc d e f g"),
        ("two\nlines\r\nhere", "two lines here"),
        ("&undefined; &notanentity;", "&undefined; &notanentity;"),
        ("", ""),
    ],
)
def test_segment_text(text: str, expected: str) -> None:
    assert ted.segments(xml({"1": [text, "end"]}), "F") == [("1", "1", expected), ("1", "2", "end")]


def test_broken_xml_is_told_with_its_line() -> None:
    content = xml({"1": ["a", "b <i>open</b>"]})
    with pytest.raises(DataError, match=r"^F:10: not well-formed XML \(mismatched tag"):
        ted.segments(content, "F")
    with pytest.raises(DataError, match="^F:[0-9]+: not well-formed XML"):
        ted.segments(xml({"1": ["a", "b"]})[:-30], "F")
    with pytest.raises(DataError, match="^F has no segment"):
        ted.segments(b"<mteval><doc docid='1'></doc></mteval>", "F")
    with pytest.raises(DataError, match="^F:9: not UTF-8 text"):
        ted.segments(xml({"1": ["a"]}).replace(b"> a <", b"> \xe9 <"), "F")


def test_evaluation_pair_demands_the_same_segments(of_files: Callable) -> None:
    source = xml({"1": ["a", "b"], "2": ["c"]})
    assert of_files(ted.evaluation_pairs, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    with pytest.raises(DataError, match="S: segment 2 of talk 1 stands opposite segment 1 of talk 2 of T"):
        of_files(ted.evaluation_pairs, source, xml({"1": ["a"], "2": ["b", "c"]}))
    with pytest.raises(DataError, match="S has 3 segments, T has 2"):
        of_files(ted.evaluation_pairs, source, xml({"1": ["a", "b"]}))
