"""Validation against training perplexity, read of logs."""

import json
import math

import numpy as np
import pytest

from fairseq_plugins.cli.plot_generalization import PlotGeneralization
from fairseq_plugins.reports.generalization import (
    Generalization,
    draw_generalization,
    generalization_table,
    read_generalization,
)
from tests.tables import rows_of

TRAIN, VALID = {1: 320.0, 2: 80.0, 3: 40.0}, {1: 200.0, 2: 100.0, 3: 110.0}
RUN = Generalization(name="plain", train=TRAIN, valid=VALID)


def log_of(train, valid, *, begin="x | INFO | "):
    """What the host logs: an epoch is validated before its training is summed up."""
    lines = []
    for epoch in valid:
        lines.append(f"{begin}train_inner | epoch {epoch:03}: 10 / 99 loss=9, ppl=7, wps=9, lr=1, wall=2")
        lines.append(
            f"{begin}valid | epoch {epoch:03} | valid on 'valid' subset | loss 7.5 | ppl {valid[epoch]:g} | wps 5"
        )
        if epoch in train:
            lines.append(f"{begin}train | epoch {epoch:03} | loss 5.7 | ppl {train[epoch]:g} | wps 67 | wall 9")
    return "".join(line + "\n" for line in lines)


@pytest.fixture
def save_dir(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text(log_of(TRAIN, VALID))
    return tmp_path / "run"


def test_both_perplexities_of_finished_epochs(save_dir):
    assert read_generalization("plain", save_dir) == RUN
    (save_dir / "train.log").write_text(log_of({1: 320.0}, VALID))  # stopped in the second epoch
    assert read_generalization("plain", save_dir) == Generalization(name="plain", train={1: 320.0}, valid={1: 200.0})


def test_a_training_that_began_again_is_the_last_one(save_dir):
    with (save_dir / "train.log").open("a") as log:
        log.write(log_of({1: 300.0, 2: 70.0}, {1: 190.0, 2: 90.0}))
    read = read_generalization("plain", save_dir)
    assert read.train == {1: 300.0, 2: 70.0} and read.valid == {1: 190.0, 2: 90.0}


@pytest.mark.parametrize(
    "text, told",
    [
        (log_of({}, VALID), "no training perplexity: the criterion logs none, or no epoch was finished"),
        ("x | INFO | train | epoch 001 | loss 5.7 | ppl 320 | wps 67\n", "holds no validation"),
        (
            log_of(TRAIN, {}) + "x | INFO | train | epoch 001 | loss 1 | ppl 3\n" + log_of({}, {2: 9.0}),
            "finished and validated",
        ),
    ],
)
def test_logs_without_both(save_dir, text, told):
    (save_dir / "train.log").write_text(text)
    with pytest.raises(ValueError, match=told):
        read_generalization("plain", save_dir)


def test_valid_at_equal_train_is_interpolated_in_logarithms():
    logs = [np.log(list(curve.values())) for curve in (TRAIN, VALID)]
    for level in (320.0, 200.0, 160.0, 80.0, 79.0, 40.0):
        expected = math.exp(np.interp(-math.log(level), -logs[0], logs[1]))
        assert RUN.valid_at(level) == pytest.approx(expected, rel=1e-12)
    assert RUN.valid_at(321) is None and RUN.valid_at(39) is None


def test_valid_at_the_first_crossing_of_a_curve_that_turns():
    run = Generalization(name="a", train={1: 200.0, 2: 100.0, 3: 150.0, 4: 100.0}, valid={1: 9, 2: 8, 3: 7, 4: 6})
    assert run.valid_at(100) == pytest.approx(8)


def test_an_infinite_perplexity_says_nothing():
    run = Generalization(name="a", train={1: math.inf, 2: 100.0, 3: 100.0}, valid={1: 9, 2: 8, 3: 7})
    assert run.valid_at(120) is None and run.valid_at(100) == 8
    assert run.best_epoch == 3
    run = Generalization(
        name="a", train={1: 200.0, 2: 150.0, 3: 100.0, 4: 80.0}, valid={1: math.nan, 2: math.inf, 3: 8, 4: 7}
    )
    assert run.valid_at(180) is None and run.valid_at(120) is None and run.valid_at(100) == 8
    assert run.best_epoch == 4


def test_table_has_the_best_epoch_and_the_levels():
    header, _, cells = rows_of(generalization_table([RUN], levels=[160, 30]))
    assert "valid at train 160" in header and "valid at train 30" in header
    assert cells == ["plain", "2", "80.00", "100.00", f"{200 * 0.5**0.5:.2f}", ""]


def test_picture_goes_on_to_the_right():
    picture = draw_generalization([RUN])
    picture.canvas.draw()
    (axes,) = picture.axes
    (line,) = axes.lines
    assert list(line.get_xdata()) == list(TRAIN.values()) and list(line.get_ydata()) == list(VALID.values())
    left, right = axes.get_xlim()
    assert left > 320 and right < 40
    assert (line.get_label(), axes.get_xscale(), axes.get_yscale()) == ("plain", "log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training perplexity", "validation perplexity")


def test_command(save_dir, capsys):
    picture = save_dir / "a.png"
    PlotGeneralization().main(["--path", f"plain={save_dir}", "--at", "160", "30", "--plot", str(picture), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["name"] == "plain" and run["best_epoch"] == 2 and picture.stat().st_size > 1000
    assert run["train"] == {"1": 320.0, "2": 80.0, "3": 40.0}
    assert run["valid_at"] == [{"train": 160.0, "valid": pytest.approx(200 * 0.5**0.5)}, {"train": 30.0, "valid": None}]


def test_command_prints_the_table(save_dir, capsys):
    PlotGeneralization().main(["--path", f"plain={save_dir}", "--at", "160", "--at", "30"])
    assert capsys.readouterr().out.strip() == generalization_table([RUN], levels=[160, 30])


@pytest.mark.parametrize(
    "words, told",
    [
        (["--path", "{save_dir}"], "give it as NAME=PATH"),
        (["--path", "a={save_dir}", "a={save_dir}"], "give each NAME once"),
        (["--path", "a={save_dir}", "--at", "0"], "--at 0.0: give a value above 0"),
        (["--path", "a={save_dir}", "--at", "many"], "argument --at: invalid float value: 'many'"),
        (["--path", "a={save_dir}/none"], "train.log does not exist: it is what a training prints"),
    ],
)
def test_what_a_user_gives_wrongly(save_dir, capsys, words, told):
    with pytest.raises(SystemExit) as end:
        PlotGeneralization().main([word.format(save_dir=save_dir) for word in words])
    error = capsys.readouterr().err
    assert end.value.code == 2 and told in error and "Traceback" not in error
