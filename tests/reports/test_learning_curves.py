"""Learning curves, and validation against training perplexity: tables and pictures."""

import json
import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from printed_tables import rows_of
from typed_commands import refused, type_command

from fairseq_plugins.reports.learning_curves import (
    Generalization,
    draw_learning_curves,
    generalization_report,
    read_generalization,
)

TRAIN, VALID = {1: 320.0, 2: 80.0, 3: 40.0}, {1: 200.0, 2: 100.0, 3: 110.0}
RUN = Generalization(name="plain", train=TRAIN, valid=VALID)


def log_of(train, valid):
    """What fairseq logs: an epoch is validated before its training is summed up."""
    begin, lines = "x | INFO | ", []
    for epoch, level in valid.items():
        lines.append(f"{begin}train_inner | epoch {epoch:03}: 10 / 99 loss=9, ppl=7, wps=9, lr=1, wall=2\n")
        lines.append(f"{begin}valid | epoch {epoch:03} | valid on 'valid' subset | loss 7 | ppl {level:g} | wps 5\n")
        if epoch in train:
            lines.append(f"{begin}train | epoch {epoch:03} | loss 5.7 | ppl {train[epoch]:g} | wps 67 | wall 9\n")
    return "".join(lines)


@pytest.fixture
def save_dir(tmp_path):
    (tmp_path / "train.log").write_text(log_of(TRAIN, VALID))
    return tmp_path


def test_both_perplexities_of_finished_epochs(save_dir):
    assert read_generalization("plain", save_dir) == RUN
    (save_dir / "train.log").write_text(log_of({1: 320.0}, VALID))  # stopped in the second epoch
    assert read_generalization("plain", save_dir) == Generalization(name="plain", train={1: 320.0}, valid={1: 200.0})


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


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "train, valid, found, best_epoch",
    [
        ([200, 100, 150, 100], [9, 8, 7, 6], {100: 8}, 4),  # the first crossing of a curve that turns
        ([INF, 100, 100], [9, 8, 7], {120: None, 100: 8}, 3),  # inf says nothing
        ([200, 150, 100, 80], [NAN, INF, 8, 7], {180: None, 120: None, 100: 8}, 4),
    ],
)
def test_valid_at_of_odd_curves(train, valid, found, best_epoch):
    run = Generalization(name="a", train=dict(enumerate(map(float, train), 1)), valid=dict(enumerate(valid, 1)))
    assert {level: run.valid_at(level) for level in found} == pytest.approx(found) and run.best_epoch == best_epoch


def test_picture_goes_on_to_the_right():
    picture = generalization_report([RUN], levels=[]).draw()
    picture.canvas.draw()
    (axes,) = picture.axes
    (line,) = axes.lines
    assert list(line.get_xdata()) == list(TRAIN.values()) and list(line.get_ydata()) == list(VALID.values())
    left, right = axes.get_xlim()
    assert left >= 320 and right <= 40
    assert (line.get_label(), axes.get_xscale(), axes.get_yscale()) == ("plain", "log", "log")
    assert axes.get_xlabel() == "training perplexity (log scale)"
    assert axes.get_ylabel() == "validation perplexity (log scale)"


def test_command(save_dir, capsys):
    picture = save_dir / "a.png"
    type_command(
        "analyze generalization", ["--path", f"plain={save_dir}", "--at", "160", "30", "--plot", str(picture), "--json"]
    )
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["name"] == "plain" and run["best_epoch"] == 2 and picture.stat().st_size > 1000
    assert run["train"] == {"1": 320.0, "2": 80.0, "3": 40.0}
    assert run["valid_at"] == [{"train": 160.0, "valid": pytest.approx(200 * 0.5**0.5)}, {"train": 30.0, "valid": None}]
    type_command("analyze generalization", ["--path", f"plain={save_dir}", "--at", "160", "--at", "30"])
    header, _, cells = rows_of(capsys.readouterr().out)
    assert header == ["model", "best epoch", "train", "valid", "valid at train 160", "valid at train 30"]
    assert cells == ["plain", "2", "80.00", "100.00", f"{200 * 0.5**0.5:.2f}", ""]


@pytest.mark.parametrize(
    "words, told",
    [
        (["--path", "{save_dir}"], "give it as NAME=PATH"),
        (["--path", "a={save_dir}", "a={save_dir}"], "give each NAME once"),
        (["--path", "a={save_dir}", "--at", "0"], "--at 0.0: give a value above 0"),
        (["--path", "a={save_dir}", "--at", "many"], "argument --at: invalid float value: 'many'"),
        (["--path", "a={save_dir}/none"], "train.log does not exist: fairseq-plugins train writes it"),
    ],
)
def test_what_a_user_gives_wrongly(save_dir, capsys, words, told):
    assert told in refused("analyze generalization", [word.format(save_dir=save_dir) for word in words], capsys)


LEARNING_CURVES = [
    {"name": "A", "seed": 1, "valid_curve": {1: 20.0, 2: 10.0}},
    {"name": "A", "seed": 2, "valid_curve": {1: 21.0, 2: 11.0}},
    {"name": "B", "seed": 1, "valid_curve": {1: 19.0}},
]


def test_a_curve_for_each_run_with_its_seed_where_names_repeat():
    (axes,) = draw_learning_curves(LEARNING_CURVES).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["A, seed 1: 10.00", "A, seed 2: 11.00", "B: 19.00"]
    assert list(axes.lines[1].get_ydata()) == [21.0, 11.0] and list(axes.lines[1].get_xdata()) == [1, 2]
    assert axes.get_yscale() == "log"
    first, second, other = axes.lines
    assert first.get_color() == second.get_color() != other.get_color()
    assert first.get_linestyle() == other.get_linestyle() != second.get_linestyle()


def _run(name, seed):
    return {"name": name, "seed": seed, "valid_curve": {1: 9.0}}


@pytest.mark.parametrize(
    "runs", [[_run("A", seed) for seed in range(6)], [_run(f"N{number}", 1) for number in range(30)]]
)
def test_many_runs_look_unlike_and_have_a_whole_legend(runs):
    picture = draw_learning_curves(runs)
    (axes,) = picture.axes
    looks = {(to_hex(line.get_color()), line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(looks) == len(runs)
    if picture.legends:
        FigureCanvasAgg(picture).draw()
        legend, whole = picture.legends[0].get_window_extent(), picture.bbox
        assert whole.y0 <= legend.y0 and legend.y1 <= whole.y1 and legend.x1 <= whole.x1


@pytest.mark.parametrize("num_runs, place", [(4, "inside"), (5, "beside")])
def test_the_legend_of_many_runs_stands_beside_their_curves(num_runs, place):
    scores = {"bleu": {1: 3.0}}
    runs = [{"name": f"N{n}", "seed": 1, "valid_curve": {1: 9.0}, "score_curves": scores} for n in range(num_runs)]
    picture = draw_learning_curves(runs)
    inside = [axes.get_legend() for axes in picture.axes]
    (legend,) = picture.legends or inside[:1]
    assert [text.get_text() for text in legend.get_texts()] == [f"N{n}: 9.00" for n in range(num_runs)]
    assert [one is None for one in inside] == [place == "beside"] * 2
    if place == "beside":
        FigureCanvasAgg(picture).draw()
        assert all(axes.get_window_extent().x1 < legend.get_window_extent().x0 for axes in picture.axes)


@pytest.mark.parametrize(
    "highest, lowest, written",
    [
        (20.0, 9.5, "8 10 15 20"),
        (68.0, 11.96, "10 15 20 30 40 50 60 80"),
        (700.0, 4.5, "2 5 10 20 50 100 200 500 1,000"),
        (5.9, 5.31, "5.3 5.4 5.5 5.6 5.7 5.8 5.9"),
        (1000.0000000000001, 990.0, "990 992 994 996 998 1,000 1,010"),
    ],
)
def test_ticks_are_apart_and_enclose_the_perplexities(highest, lowest, written):
    picture = draw_learning_curves([{"name": "A", "seed": 1, "valid_curve": {1: highest, 2: lowest}}])
    FigureCanvasAgg(picture).draw()
    shown = picture.axes[0].yaxis.get_major_ticks()
    assert [tick.label1.get_text() for tick in shown] == written.split()
    extents = [tick.label1.get_window_extent() for tick in shown if tick.label1.get_text()]
    boxes = sorted(extents, key=lambda box: box.y0)
    assert all(lower.y1 < upper.y0 for lower, upper in zip(boxes, boxes[1:]))


@pytest.mark.parametrize("num_epochs, every", [(40, 1), (200, 5)])
def test_of_a_long_curve_some_points_are_marked(num_epochs, every):
    curve = {epoch: 10.0 - epoch / 10 for epoch in range(1, num_epochs + 1)}
    (axes,) = draw_learning_curves([{"name": "A", "seed": 1, "valid_curve": curve}]).axes
    assert axes.lines[0].get_marker() == "o" and axes.lines[0].get_markevery() == every


def test_scores_of_decoded_text_have_panels_in_the_colours_of_the_runs():
    curves = [{"rouge1": {1: 9.0}}, {"bleu": {1: 3.0, 2: 5.0}}, {}]
    picture = draw_learning_curves([{**run, "score_curves": scores} for run, scores in zip(LEARNING_CURVES, curves)])
    perplexity, bleu, rouge = picture.axes
    titles = [axes.get_title() for axes in picture.axes]
    assert titles == ["Validation perplexity", "Validation BLEU", "Validation ROUGE-1"]
    assert len(perplexity.lines) == 3 and bleu.get_yscale() == rouge.get_yscale() == "linear"
    (line,) = bleu.lines
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == [3.0, 5.0]
    assert (line.get_label(), line.get_color()) == ("A, seed 2: 5.00", perplexity.lines[1].get_color())
    (line,) = rouge.lines
    assert (line.get_label(), line.get_color()) == ("A, seed 1: 9.00", perplexity.lines[0].get_color())


def test_training_curves_of_few_runs_are_dotted():
    run = {"name": "A", "seed": 1, "valid_curve": {1: 30.0, 2: 20.0}, "train_curve": {1: 90.0, 2: 15.0}}
    (axes,) = draw_learning_curves([run]).axes
    valid, train = axes.lines
    assert list(train.get_ydata()) == [90.0, 15.0] and train.get_linestyle() == ":"
    assert train.get_color() == valid.get_color() and axes.get_ylim() == (15.0, 100.0)
    (axes,) = draw_learning_curves([{**run, "name": name} for name in "ABCDE"]).axes
    assert len(axes.lines) == 5
