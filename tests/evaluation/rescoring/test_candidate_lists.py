"""Lists of candidates in each form."""

import tracemalloc

import numpy as np
import pytest

from fairseq_plugins.evaluation.rescoring.candidate_lists import (
    LIST_FORMATS,
    Candidate,
    NBestLists,
    marked_kind,
    read_nbest,
    write_nbest,
)

GENERATE = """\
INFO what the host logs
S-1\tc d
T-1\tC D
H-1\t-0.5\tC E
D-1\t-0.5\tC E
P-1\t-0.5 -0.5
H-1\t-0.7\tC D
S-0\ta
T-0\tA
H-0\t-0.25\tA
Generate test with beam=5
"""
MOSES = """\
0 ||| A ||| d= 1 w= 2 ||| -0.25
1 ||| C E ||| d= 3 w= 2 ||| -0.5 ||| 0-0
1 ||| C D ||| d= 0 w= 2 ||| -0.7
"""
TAB = "1\t-0.5\tC E\n0\t-0.25\tA\n\n1\t-0.7\tC D\n"
TEXTS = {"generate": GENERATE, "moses": MOSES, "tab": TAB}


@pytest.fixture
def read(tmp_path):
    def read(text, form):
        (tmp_path / "lists").write_text(text)
        return read_nbest([tmp_path / "lists"], form=form)

    return read


@pytest.mark.parametrize("form", LIST_FORMATS)
def test_candidates_stand_by_their_sentences(form, read):
    lists = read(TEXTS[form], form)
    found = [[(candidate.text, candidate.score) for candidate in one] for one in lists.candidates]
    assert found == [[("A", -0.25)], [("C E", -0.5), ("C D", -0.7)]]
    assert lists.first == [0, 0] and lists.texts == ["A", "C E", "C D"]
    has_pairs = form == "generate"
    assert lists.sources == (["a", "c d"] if has_pairs else [])
    assert lists.references == (["A", "C D"] if has_pairs else [])


def test_sources_of_some_sentences_are_none(read):
    lists = read(GENERATE.replace("S-0\ta\n", ""), "generate")
    assert lists.sources == [] and lists.references == ["A", "C D"]


@pytest.mark.parametrize("form", LIST_FORMATS)
def test_reordered_lists_are_read_again(form, read):
    lists = read(TEXTS[form], form)
    text = write_nbest(lists, [np.array([2.0]), np.array([-3.5, 1.25])], form=form)
    again = read(text, form)
    found = [[(candidate.text, candidate.score) for candidate in one] for one in again.candidates]
    assert found == [[("A", 2.0)], [("C D", 1.25), ("C E", -3.5)]]
    assert again.sources == lists.sources and again.references == lists.references
    if form == "moses":
        assert "1 ||| C E ||| d= 3 w= 2 ||| -3.500000 ||| 0-0\n" in text


def test_candidates_with_the_same_score_stay_in_their_order():
    lists = NBestLists([[Candidate(text, 0.0) for text in "ABC"]], [], [])
    written = write_nbest(lists, [np.array([-1.0, -1.0, -0.5])], form="tab")
    assert [line.split("\t")[2] for line in written.splitlines()] == ["C", "A", "B"]


def test_three_fields_of_moses_have_a_score_and_no_features(read):
    lists = read("0 ||| a b ||| -1.5\n", "moses")
    assert lists.candidates[0][0].score == -1.5
    assert write_nbest(lists, [np.array([2.0])], form="moses") == "0 ||| a b |||  ||| 2.000000\n"


def test_a_list_need_not_be_in_the_order_of_its_scores(read):
    assert read("0\t-2\ta\n0\t-1\tb\n0\t-1\tc\n", "tab").first == [1]


@pytest.mark.parametrize(
    "form, text, message",
    [
        ("tab", "0\t-1\ta\n0 -1 b\n", r"lists, line 2: not NUMBER<tab>SCORE<tab>TEXT"),
        ("tab", "0\tnan\ta\n", "line 1: not NUMBER<tab>"),
        ("tab", "0\t-1\ta\n0\tinf\tb\n", "line 2: not NUMBER<tab>"),
        ("tab", "0\t-1\ta\n0\t-inf\tb\n", "line 2: not NUMBER<tab>"),
        ("moses", "0 ||| a ||| x\n", r"line 1: not NUMBER \|\|\| TEXT"),
        ("moses", "0 a\n", "line 1: not NUMBER"),
        ("generate", "H-0\tx\ta\n", "line 1: not H-NUMBER<tab>"),
        ("generate", "nothing\n", "holds no candidate: lines are H-NUMBER"),
        ("tab", "1\t-1\ta\n", "sentence 0 has no candidate; sentences are numbered from 0"),
        ("tab", "0\t-1\ta\n-1\t-1\tb\n", "line 2: not NUMBER<tab>"),
        ("moses", "-1 ||| a ||| -1\n", "line 1: not NUMBER"),
        ("tab", "", "lists is empty"),
    ],
)
def test_other_lines_are_told(form, text, message, read):
    with pytest.raises(ValueError, match=message):
        read(text, form)


def test_a_large_number_costs_no_memory(read):
    tracemalloc.start()
    with pytest.raises(ValueError, match="sentence 1 has no candidate"):
        read("0\t-1\ta\n500000\t-1\tb\n", "tab")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_subwords_are_told_by_their_marks():
    assert marked_kind(["a b", "ne@@ w"]) == "subword_nmt"
    assert marked_kind(["\u2581a b"]) == "sentencepiece"
    assert marked_kind(["a b", "a@@b"]) is None
    assert marked_kind(["a b", "ne@@ w", "a \u2581 b"]) == "subword_nmt"  # the text's own
    assert marked_kind(["a b", "a \u2581 b"]) is None


@pytest.mark.parametrize("unicode, text", [("NFC", "sch\u00f6n"), ("kept", "scho\u0308n")])
def test_texts_are_of_the_form_that_the_data_have(unicode, text, tmp_path):
    for name in ("lists", "sources"):
        (tmp_path / name).write_text("0\t-0.5\tscho\u0308n\n")
    lists = read_nbest([tmp_path / "lists"], form="tab", unicode=unicode)
    assert lists.texts == [text] and lists.lines_of(tmp_path / "sources") == [f"0\t-0.5\t{text}"]
