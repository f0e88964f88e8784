"""Readings of text are timed by turns, and compared with those that they are to be compared with."""

import json
import shutil

import evaluation
import pytest
import torch
from benchmark import readings_by_turns
from builders import build_tiny_lm, make_dictionary
from evaluation import (
    BENCHMARK,
    FLOOR,
    LINES,
    METHODS,
    PLAIN,
    PLAIN_ROWS,
    as_markdown,
    gradient_reading,
    lines_of,
    main,
)
from paths import SMALL_MODELS
from printed_tables import rows_of


def test_readings_are_made_in_both_orders_and_the_first_round_is_not_counted():
    turns = []

    def reading(name, speeds):
        found = iter(speeds)
        return lambda: (turns.append(name), next(found))[1]

    readings = {"a": reading("a", [1e6, 3, 1, 2]), "b": reading("b", [1e6, 5, 5, 7])}
    assert readings_by_turns(readings, num_rounds=3) == {"a": [3, 1, 2], "b": [5, 5, 7]}
    assert "".join(turns) == "abbaabba"


def test_the_lines_are_those_of_the_stream():
    dictionary = make_dictionary(9)
    end, (a, b) = dictionary.eos(), (dictionary.index(word) for word in ("w0", "w1"))
    tokens = torch.tensor([a, b, end, end, b, end, a])
    assert lines_of(tokens, dictionary, num_lines=9) == ["w0 w1", "", "w1"]
    assert lines_of(tokens, dictionary, num_lines=2) == ["w0 w1", ""]


def test_the_parts_of_dynamic_evaluation_read_every_word_with_a_gradient_and_leave_the_weights(monkeypatch):
    model = build_tiny_lm("tied", vocab_size=9).eval()
    frozen = next(model.parameters()).requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    asked = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, weights, **kw: asked.append(grad(loss, weights, **kw)))
    clock = iter([0.0, 0.5])
    monkeypatch.setattr(evaluation.time, "perf_counter", lambda: next(clock))
    assert gradient_reading([model], torch.randint(4, 9, (13,)))() == 12 / 0.5
    assert len(asked) == 3 and all(len(found) == len(list(model.parameters())) for found in asked)
    assert not frozen.requires_grad
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    "name, ratios",
    [
        (PLAIN, ["", "", ""]),
        ("continuous cache of 500 words", ["0.25", "", ""]),
        ("dynamic evaluation, rms", ["0.25", "0.50", ""]),
        (FLOOR, ["", "", ""]),
        (LINES, ["", "", "0.10"]),
    ],
)
def test_ratios_are_those_to_what_a_reading_is_compared_with(name, ratios):
    speeds = {**dict.fromkeys(METHODS, 50.0), PLAIN: 200.0, FLOOR: 100.0, PLAIN_ROWS: 500.0, LINES: 50.0}
    (row,) = (row for row in rows_of(as_markdown(speeds)) if row[0] == name)
    assert row[1] == f"{speeds[name]:,.0f}" and row[2:] == ratios


@pytest.fixture
def line(tmp_path):
    """Arguments, with a copy of a model, because statistics are written beside it."""
    checkpoint = shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", tmp_path)
    return [str(SMALL_MODELS / "data/lm"), "--path", str(checkpoint), "--cpu", "--out", str(tmp_path / "out")]


@pytest.mark.parametrize(
    "typed, message",
    [
        ("--rounds 0", "argument --rounds: 0: give a whole number of at least 1"),
        ("--lines 0", "argument --lines: 0: give a whole number of at least 1"),
        ("--words 1", "argument --words: 1: give a whole number of at least 2"),
        ("--lines 1", "words, and 64 rows need 128: give more lines, or another --split"),
    ],
)
def test_what_cannot_be_measured_is_one_line(typed, message, line, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        main(BENCHMARK, [*line, *typed.split()])
    (printed,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and message in printed and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_all_methods_and_lines_are_timed(line, tmp_path, capsys):
    limits = ["--words", "30", "--lines", "60", "--rounds", "1", "--split", "train", "--name", "tiny"]
    main(BENCHMARK, [*line, *limits])
    assert capsys.readouterr().out == (tmp_path / "out/evaluation_cpu_tiny.md").read_text()
    figures = json.loads((tmp_path / "out/evaluation_cpu_tiny.json").read_text())
    assert figures["num_words"] == 30 and figures["num_lines"] == 60 and len(figures["words_per_second"]) == 10
    assert all(speed > 0 for speed in figures["words_per_second"].values())
