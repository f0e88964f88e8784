"""Tables of reranked trees, against counts worked by hand."""

import pytest
from printed_tables import rows_of

from fairseq_plugins.reports.reranking import by_run, reranking_report, row_names
from fairseq_plugins.trees.reranking import SystemScore
from fairseq_plugins.trees.trees import BracketCounts

RIGHT = BracketCounts(matched=4, gold=4, test=4, num_trees=1, num_exact=1)
HALF = BracketCounts(matched=2, gold=4, test=4, num_trees=1)


def choice(*of_sentences, skipped=()):
    return SystemScore(list(of_sentences), list(skipped))


RERANKED = {
    "parser": [choice(*[HALF] * 40)],
    "AWD": [choice(*[RIGHT, HALF] * 20), choice(*[RIGHT] * 40)],
    "DOC": [choice(*[HALF] * 39, BracketCounts(), skipped=["x"])],
    "none": [choice(*[BracketCounts()] * 40, skipped=[*"abcdef", *"x" * 34])],
    "oracle": [choice(*[RIGHT] * 40)],
}
CHECKPOINTS = {"AWD 1": "a.pt", "AWD 2": "b.pt", "DOC": "c.pt"}


def report(systems=RERANKED, **options):
    return reranking_report("test", [], systems, checkpoints=CHECKPOINTS, **options)


def test_names_of_rows():
    assert by_run({"A": [3], "B": [4, 5]}) == {"A": 3, "B 1": 4, "B 2": 5}
    assert row_names("A", [1]) == ["A"]
    assert row_names("A", [1, 2]) == ["A", "A 1", "A 2", "A, mean", "A, standard deviation"]


def test_figures_of_each_run_and_means_of_several():
    figures = report().figures
    rows = figures["systems"]
    assert list(rows) == ["parser", "AWD 1", "AWD 2", "DOC", "none", "oracle"]
    assert (rows["AWD 1"]["f1"], rows["AWD 1"]["checkpoint"]) == (0.75, "a.pt") and "checkpoint" not in rows["parser"]
    assert rows["DOC"]["skipped"] == ["x"] and (rows["none"]["f1"], rows["none"]["num_trees"]) == (0, 0)
    assert list(figures["means"]) == ["AWD"]
    assert figures["means"]["AWD"]["f1"] == {"mean": 0.875, "standard_deviation": pytest.approx(0.25 / 2**0.5)}
    assert figures["means"]["AWD"]["exact"]["mean"] == 0.75
    assert not {"baseline", "differences"} & figures.keys()
    assert "means" not in report({"parser": RERANKED["parser"]}).figures


def test_differences_are_of_all_runs_of_a_name():
    figures = report(baseline="parser").figures
    assert figures["baseline"] == "parser"
    found = {one["name"]: one["differences"] for one in figures["differences"]}
    assert list(found) == ["AWD", "DOC", "none"] and list(found["AWD"]) == ["f1", "exact"]
    assert (found["AWD"]["f1"]["value"], found["AWD"]["exact"]["value"]) == (0.375, 0.75)
    # one sentence of two brings a quarter: the deviation of a sample is 0.125 / sqrt(40)
    assert found["AWD"]["f1"]["interval"] == pytest.approx(1.96 * 0.125 / 40**0.5, rel=0.1)
    assert found["AWD"]["f1"]["p"] == pytest.approx(1 / 1001)
    # a sentence that was skipped brings nothing
    assert found["DOC"]["f1"] == {"value": 0, "interval": 0, "p": 1} and found["none"]["f1"]["value"] == -0.5


def test_the_table_has_a_row_for_each_run_their_mean_and_what_is_left_out():
    text = report(baseline="parser").text
    table, left_out, differences = text.partition("DOC leaves out 1")
    assert table.splitlines()[0] == "test: 0 sentences, 0 candidates, 0 different"
    assert rows_of(table)[4:] == [
        ["parser", "50.00", "50.00", "50.00", "0.00", "40"],
        ["AWD 1", "75.00", "75.00", "75.00", "50.00", "40"],
        ["AWD 2", "100.00", "100.00", "100.00", "100.00", "40"],
        ["AWD, mean", "87.50", "87.50", "87.50", "75.00", ""],
        ["AWD, standard deviation", "17.68", "17.68", "17.68", "35.36", ""],
        ["DOC", "50.00", "50.00", "50.00", "0.00", "39"],
        ["none", "0.00", "0.00", "0.00", "0.00", "0"],
        ["oracle", "100.00", "100.00", "100.00", "100.00", "40"],
    ]
    assert left_out and "none leaves out 40 (" in differences and ": a, b, c, d, e, ...\n" in differences
    _, tested = differences.split("Paired bootstrap")
    head, _, first, *_ = rows_of(tested)[2:]
    assert head == ["minus parser", "F1", "exact"] and first[0] == "AWD" and first[1].startswith("+37.50 +- ")
    assert "minus" not in report().text
