"""Figures and tables of ways to choose trees, against counts worked by hand."""

import pytest

from fairseq_plugins.reports.reranking import (
    reranking_as_text,
    reranking_differences,
    reranking_figures,
    run_names,
)
from fairseq_plugins.trees.bracket_scores import BracketCounts
from fairseq_plugins.trees.choices import SystemScore

RIGHT = BracketCounts(matched=4, gold=4, test=4, num_trees=1, num_exact=1)
HALF = BracketCounts(matched=2, gold=4, test=4, num_trees=1)
WRONG = BracketCounts(matched=0, gold=4, test=4, num_trees=1)


def choice(*of_sentences, skipped=()):
    return SystemScore(list(of_sentences), list(skipped))


SYSTEMS = {
    "parser": [choice(*[HALF] * 40)],
    "AWD": [choice(*[RIGHT, HALF] * 20), choice(*[RIGHT] * 40)],
    "DOC": [choice(*[WRONG] * 39, BracketCounts(), skipped=["x"])],
}


def test_rows_of_several_runs_have_numbers():
    assert run_names("A", 1) == ["A"] and run_names("A", 2) == ["A 1", "A 2"]


def test_figures_of_each_run_and_means_of_several():
    figures = reranking_figures([], SYSTEMS, tested=[])
    assert list(figures["systems"]) == ["parser", "AWD 1", "AWD 2", "DOC"] and "differences" not in figures
    assert figures["systems"]["AWD 1"]["f1"] == 0.75 and figures["systems"]["DOC"]["skipped"] == ["x"]
    assert list(figures["means"]) == ["AWD"]
    assert figures["means"]["AWD"]["f1"] == {"mean": 0.875, "standard_deviation": pytest.approx(0.25 / 2**0.5)}
    assert figures["means"]["AWD"]["exact"]["mean"] == 0.75
    assert "means" not in reranking_figures([], {"parser": SYSTEMS["parser"]}, tested=[])


def test_differences_are_of_all_runs_of_a_name():
    found = {one["name"]: one["differences"] for one in reranking_differences(SYSTEMS, baseline="parser")}
    assert list(found) == ["AWD", "DOC"] and list(found["AWD"]) == ["F1", "exact"]
    assert (found["AWD"]["F1"]["value"], found["AWD"]["exact"]["value"]) == (37.5, 75)
    # one sentence of two brings 25 points: the deviation of a sample is 12.5 / sqrt(40)
    assert found["AWD"]["F1"]["interval"] == pytest.approx(1.96 * 12.5 / 40**0.5, rel=0.1)
    assert found["AWD"]["F1"]["p"] == pytest.approx(1 / 1001)
    assert found["DOC"]["F1"]["value"] == -50 and found["DOC"]["exact"] == {"value": 0, "interval": 0, "p": 1}


def test_the_table_has_a_row_for_each_run_their_mean_and_what_is_left_out():
    tested = reranking_differences(SYSTEMS, baseline="parser")
    text = reranking_as_text("test", [], SYSTEMS, tested=tested, baseline="parser")
    table, left_out, differences = text.partition("DOC leaves out 1")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[4:]]
    assert rows == [
        ["parser", "50.00", "50.00", "50.00", "0.00", "40"],
        ["AWD 1", "75.00", "75.00", "75.00", "50.00", "40"],
        ["AWD 2", "100.00", "100.00", "100.00", "100.00", "40"],
        ["AWD, mean", "87.50", "87.50", "87.50", "75.00", ""],
        ["AWD, standard deviation", "17.68", "17.68", "17.68", "35.36", ""],
        ["DOC", "0.00", "0.00", "0.00", "0.00", "39"],
    ]
    assert left_out and "| minus parser" in differences and "+37.50 +- " in differences
    assert "minus" not in reranking_as_text("test", [], SYSTEMS, tested=[], baseline=None)
