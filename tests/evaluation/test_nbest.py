"""N-best lists in each format, and the output of fairseq-generate."""

import tracemalloc

import numpy as np
import pytest

from fairseq_plugins.evaluation.nbest import (
    LIST_FORMATS,
    Candidate,
    NBestLists,
    read_generated,
    read_nbest,
    write_nbest,
)

GENERATE = """\
INFO what fairseq logs
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


def scored_texts(lists):
    return [[(candidate.text, candidate.score) for candidate in found] for found in lists.candidates]


@pytest.mark.parametrize("form", LIST_FORMATS)
def test_lists_are_read_written_in_another_order_and_read_again(form, read):
    lists = read(TEXTS[form], form)
    assert scored_texts(lists) == [[("A", -0.25)], [("C E", -0.5), ("C D", -0.7)]]
    assert lists.first == [0, 0] and lists.texts == ["A", "C E", "C D"]
    text = write_nbest(lists, [np.array([2.0]), np.array([-3.5, 1.25])], form=form)
    again = read(text, form)
    assert scored_texts(again) == [[("A", 2.0)], [("C D", 1.25), ("C E", -3.5)]]
    has_pairs = form == "generate"
    for one in (lists, again):
        assert one.sources == (["a", "c d"] if has_pairs else [])
        assert one.references == (["A", "C D"] if has_pairs else [])
    if form == "moses":
        assert "1 ||| C E ||| d= 3 w= 2 ||| -3.500000 ||| 0-0\n" in text


def test_sources_of_some_sentences_are_none(read):
    lists = read(GENERATE.replace("S-0\ta\n", ""), "generate")
    assert lists.sources == [] and lists.references == ["A", "C D"]


def test_candidates_with_the_same_score_stay_in_their_order():
    lists = NBestLists([[Candidate(text, 0.0) for text in "ABC"]], [], [])
    written = write_nbest(lists, [np.array([-1.0, -1.0, -0.5])], form="tab")
    assert [line.split("\t")[2] for line in written.splitlines()] == ["C", "A", "B"]


def test_three_fields_of_moses_have_a_score_and_a_list_may_be_in_any_order(read):
    lists = read("0 ||| a b ||| -1.5\n", "moses")
    assert lists.candidates[0][0].score == -1.5
    assert write_nbest(lists, [np.array([2.0])], form="moses") == "0 ||| a b |||  ||| 2.000000\n"
    assert read("0\t-2\ta\n0\t-1\tb\n0\t-1\tc\n", "tab").first == [1]


@pytest.mark.parametrize(
    "form, text, message",
    [
        ("tab", "0\t-1\ta\n0 -1 b\n", r"lists, line 2: cut short or not NUMBER<tab>SCORE<tab>TEXT"),
        ("moses", "0 ||| a ||| x\n", r"line 1: cut short or not NUMBER \|\|\| TEXT"),
        ("moses", "0 a\n", "line 1: cut short or not NUMBER"),
        ("generate", "H-0\tx\ta\n", "line 1: cut short or not H-NUMBER<tab>"),
        ("generate", "nothing\n", "holds no candidate: lines are H-NUMBER"),
        ("tab", "1\t-1\ta\n", "sentence 0, from 0, has no candidate: was decoding cut"),
        ("generate", "S-0\ta\nH-0\t-1\tb\nS-1\tc\n", "sentence 1, from 0, has no candidate"),
        ("tab", "0\t-1\ta\n-1\t-1\tb\n", "line 2: cut short or not NUMBER<tab>"),
        ("tab", "", "lists holds no candidate: lines are NUMBER<tab>"),
    ],
)
def test_other_lines_are_told(form, text, message, read):
    with pytest.raises(ValueError, match=message):
        read(text, form)


def test_a_large_number_costs_no_memory(read):
    tracemalloc.start()
    with pytest.raises(ValueError, match="sentence 1, from 0, has no candidate"):
        read("0\t-1\ta\n500000\t-1\tb\n", "tab")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


@pytest.mark.parametrize("unicode, text", [("NFC", "sch\u00f6n"), ("kept", "scho\u0308n")])
def test_texts_are_of_the_form_that_the_data_have(unicode, text, tmp_path):
    for name in ("lists", "sources"):
        (tmp_path / name).write_text("0\t-0.5\tscho\u0308n\n")
    lists = read_nbest([tmp_path / "lists"], form="tab", unicode=unicode)
    assert lists.texts == [text] and lists.lines_of(tmp_path / "sources") == [f"0\t-0.5\t{text}"]


# The output of fairseq-generate.

GENERATED = """S-1\tb
T-1\tein Haus .
H-1\t-0.5\tein\x0cHaus .
D-1\t-0.5\tein Haus .
P-1\t-0.1 -0.2
H-1\t-0.9\tdas Haus .
S-0\ta
T-0\tja\u2028ja\x85!
H-0\t-0.2\t
2026-11-21 | INFO | fairseq_cli.generate | Generate test with beam=5: BLEU4 = 1
"""


def write(path, text):
    path.write_bytes(text.encode())
    return path


def test_the_best_hypothesis_of_each_sentence_is_read_with_odd_separators(tmp_path):
    hypotheses, references = read_generated(write(tmp_path / "generate.txt", GENERATED))
    assert hypotheses == ["", "ein\x0cHaus ."] and references == ["ja\u2028ja\x85!", "ein Haus ."]


def test_files_of_one_decoding_are_read_as_one_and_two_decodings_are_refused(tmp_path):
    first = write(tmp_path / "first.txt", "T-0\ta\nH-0\t-1\ta\nH-0\t-2\tb\n")
    second = write(tmp_path / "second.txt", "T-1\tc\nH-1\t-1\td\n")
    assert read_generated(first, second)[0] == ["a", "d"]
    for files in ((first, second, first), (first, first)):
        with pytest.raises(ValueError, match="first.txt, line 2: sentence 0 is in an earlier file, too: give what one"):
            read_generated(*files)
    assert read_nbest([first, first], form="generate").texts == ["a", "b", "a", "b"]  # such as of two decoders


WHOLE = "T-0\ta\nH-0\t-1\ta\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "generate.txt holds no candidate: lines are H-NUMBER"),
        ("T-0\ta\n", "generate.txt holds no candidate: lines are H-NUMBER"),
        (f"{WHOLE}H-2\t-1\tc\nT-2\tc\n", "generate.txt: sentence 1, from 0, has no candidate: was decoding cut short"),
        (f"{WHOLE}T-1\tc\n", "sentence 1, from 0, has no candidate"),
        (f"{WHOLE}H-999999999999\t-1\tb\n", "sentence 1, from 0, has no candidate"),
        (f"{WHOLE}H-1\t-1\tb\n", "generate.txt lacks references, T-NUMBER<tab>TEXT"),
        (f"{WHOLE}H-²\t-1\ta", "generate.txt, line 3: cut short or not H-NUMBER"),
        (f"{WHOLE}T-1x\ta", "generate.txt, line 3: cut short or not H-NUMBER"),
        (f"{WHOLE}H-{'9' * 5000}\t-1\ta", "generate.txt, line 3: cut short or not H-NUMBER"),
        (f"{WHOLE}H-1\t-0.5", "generate.txt, line 3: cut short or not H-NUMBER"),
        (f"{WHOLE}T-1", "generate.txt, line 3: cut short or not H-NUMBER"),
    ],
)
def test_output_that_is_cut_short_or_of_another_form_is_refused(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_generated(write(tmp_path / "generate.txt", text))
