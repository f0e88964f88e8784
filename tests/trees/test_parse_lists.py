"""Lists of candidates in both forms, and gold trees."""

import gzip
import math

import pytest

from fairseq_plugins.trees.gold_sentences import read_gold_sentences
from fairseq_plugins.trees.parse_lists import read_parse_lists

PARSER = "2\twsj_1.0\n-3.5\n(S1 (A (NN a)))\n-4\n(S1 (B (NN a)))\n\n0\twsj_1.1\n\n1\twsj_1.2\n-inf\n(S1 (C (NN c)))\n\n"
TABLE = "1\t-7\t(S1 (B (NN b)))\n0\t-2\t(S1 (A (NN a)))\n1\t-3\t(S1 (C (NN b)))\n1\t-3\t(S1 (D (NN b)))\n"


def given(candidates):
    return [(candidate.score, candidate.bracketed) for candidate in candidates]


@pytest.mark.parametrize("name", ["lists.txt", "lists.txt.gz"])
def test_the_parsers_form(name, tmp_path):
    content = PARSER.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    lists = read_parse_lists(tmp_path / name)
    assert lists.order == "of sentences" and list(lists.candidates) == ["wsj_1.0", "wsj_1.1", "wsj_1.2"]
    assert given(lists.candidates["wsj_1.0"]) == [(-3.5, "(S1 (A (NN a)))"), (-4, "(S1 (B (NN a)))")]
    assert lists.candidates["wsj_1.1"] == [] and lists.candidates["wsj_1.2"][0].score == -math.inf
    assert lists.candidates["wsj_1.0"][1].tree().children[0].label == "B"
    assert lists.candidates["wsj_1.0"][1].place == f"{tmp_path / name}, line 5"


def test_the_form_of_a_table_is_sorted_and_may_be_in_any_order(tmp_path):
    (tmp_path / "lists").write_text(f"\n{TABLE}")
    lists = read_parse_lists(tmp_path / "lists")
    assert lists.order == "any"
    expected = [(-3, "(S1 (C (NN b)))"), (-3, "(S1 (D (NN b)))"), (-7, "(S1 (B (NN b)))")]
    assert given(lists.candidates["1"]) == expected and given(lists.candidates["0"]) == [(-2, "(S1 (A (NN a)))")]


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (
            "\n0 ||| (A (B b)) ||| -1\n",
            r"line 2: '0 \|\|\| .*' has no tab: give COUNT<TAB>ID and .*, or ID<TAB>SCORE<TAB>",
        ),
        ("x\ta\n-1\n(A (B b))\n", "line 1: 'x\ta' where COUNT<TAB>ID .*, or ID<TAB>SCORE<TAB>TREE for each candidate$"),
        ("2\ta\n-1\n(A (B b))\n-2\n", "ends within the list of a: 1 of 2 candidates are whole"),
        ("1\ta\n-1\n(A (B b))\n\n1\ta\n-1\n(A (B b))\n", "line 5: sentence a has a list already"),
        ("1\ta\n(A (B b))\n-1\n", r"line 2: '\(A \(B b\)\)' where the score of a candidate is expected"),
        ("1\ta\n-1\n(A (B b))\n-2\n(A (B b))\n", "line 4: '-2' where COUNT<TAB>ID of a list is expected"),
        ("0\t-1\t(A (B b))\n1\t(A (B b))\n", "line 2: 2 fields where ID<TAB>SCORE<TAB>TREE is expected"),
        ("0\tnan\t(A (B b))\n", "line 1: 'nan' where the score of a candidate is expected"),
    ],
)
def test_what_is_of_neither_form_is_refused_with_its_line(content, message, tmp_path):
    (tmp_path / "lists").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_parse_lists(tmp_path / "lists")


def test_a_candidate_that_is_no_tree_is_told_with_its_line(tmp_path):
    (tmp_path / "lists").write_text("1\ta\n-1\n(A (B b)\n")
    (candidate,) = read_parse_lists(tmp_path / "lists").candidates["a"]
    with pytest.raises(ValueError, match="lists, line 3: the text ends within a tree"):
        candidate.tree()


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "lists.gz"
    path.write_bytes(gzip.compress(TABLE.encode() * 99)[:-20])
    with pytest.raises(ValueError, match=r"lists\.gz is truncated or damaged after line"):
        read_parse_lists(path)
    path.write_bytes(b"\x1f\x8bno gzip")
    with pytest.raises(ValueError, match="truncated or damaged"):
        read_parse_lists(path)
    (tmp_path / "lists").write_bytes(b"1\ta\n-1\n(A (B \xff))\n")
    with pytest.raises(ValueError, match="lists, line 3: not UTF-8"):
        read_parse_lists(tmp_path / "lists")
    with pytest.raises(ValueError, match="none does not exist: give a file of a parser's candidates"):
        read_parse_lists(tmp_path / "none")
    with pytest.raises(ValueError, match="is a folder: give a file of gold trees"):
        read_gold_sentences(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "parser").write_text(f"\ufeff{PARSER}")
    assert list(read_parse_lists(tmp_path / "parser").candidates) == ["wsj_1.0", "wsj_1.1", "wsj_1.2"]
    (tmp_path / "table").write_text(f"\ufeff{TABLE}")
    assert list(read_parse_lists(tmp_path / "table").candidates) == ["1", "0"]
    (tmp_path / "gold").write_text("\ufeffx\t(S1 (A (NN a)))\n")
    assert [one.name for one in read_gold_sentences(tmp_path / "gold")] == ["x"]


def test_tabs_within_a_tree_are_blanks(tmp_path):
    (tmp_path / "gold").write_text("(S1\t(A\t(NN a)))\n (S1 (B\t(NN b)))\n")
    sentences = read_gold_sentences(tmp_path / "gold")
    assert [(one.name, str(one.tree)) for one in sentences] == [(None, "(S1 (A (NN a)))"), (None, "(S1 (B (NN b)))")]
    (tmp_path / "table").write_text("x\t-1\t(S1\t(A (NN a)))\n")
    (candidate,) = read_parse_lists(tmp_path / "table").candidates["x"]
    assert str(candidate.tree()) == "(S1 (A (NN a)))"


def test_gold_trees_with_and_without_names(tmp_path):
    path = tmp_path / "gold"
    path.write_text("(S1 (A (NN a)))\n(S1 (B (NN b)))\n")
    assert [(one.name, str(one.tree)) for one in read_gold_sentences(path)] == [
        (None, "(S1 (A (NN a)))"),
        (None, "(S1 (B (NN b)))"),
    ]
    path.write_text("x\t(S1 (A (NN a)))\ny\t(S1 (B (NN b)))\n")
    assert [one.name for one in read_gold_sentences(path)] == ["x", "y"]


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is empty: give a gold tree a line"),
        ("(A (B b))\n\n", "line 2: 0 trees where one is expected"),
        ("(A (B b))\nx\t(A (B b))\n", "some lines are ID<TAB>TREE and others only a tree"),
        ("x\t(A (B b))\n\t(A (B b))\n", "line 2: the ID before the tab is empty: write ID<TAB>TREE"),
        ("x\t(A (B b))\nx\t(A (B b))\n", "sentence x stands there twice"),
    ],
)
def test_gold_trees_that_are_refused(content, message, tmp_path):
    (tmp_path / "gold").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_gold_sentences(tmp_path / "gold")
