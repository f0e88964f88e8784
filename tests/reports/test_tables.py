"""Tables in Markdown and learning curves."""

import json
import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from fairseq_plugins.reports import provenance
from fairseq_plugins.reports.plots import draw_learning_curves
from fairseq_plugins.reports.tables import (
    Cell,
    Report,
    as_label,
    as_table,
    json_text,
    new_picture,
    save_picture,
)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" |")]


def test_names_stand_to_the_left_and_figures_to_the_right_as_they_are():
    title, rule, *rows = as_table(["model", "BLEU"], [("a", "9.00"), ("long name", "10.00")]).splitlines()
    assert title == "| model     |   BLEU |" and rule == "|:----------|-------:|"
    assert rows == ["| a         |   9.00 |", "| long name |  10.00 |"]
    given = [["1e3", "1,000", None, 0.50], ["a\nb", "a|b", 1, 2]]
    *_, first, second = as_table(["a", "b", "c", "d"], given).splitlines()
    assert cells(first) == ["1e3", "1,000", "", "0.5"] and cells(second) == ["a\ufffdb", r"a\|b", "1", "2"]
    assert r"minus a\|b" in as_table(["model", "minus a|b"], [("x", 1)])
    assert str(Cell(1.239)) == "1.24" and str(Cell(1234.6, ",.0f")) == "1,235"
    assert str(Cell(12.0, interval=0.123)) == "12.00 +- 0.12"


FIGURES = {"a": math.inf, "b": [1.5, -math.inf, (math.nan, 2)], "c": {"d": None, "e": True, "f": "ä"}}
READ = {"a": None, "b": [1.5, None, [None, 2]], "c": {"d": None, "e": True, "f": "ä"}}


@pytest.mark.parametrize("options", [{}, dict(indent=2), dict(letters="kept")])
def test_what_is_no_number_is_null(options):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = json_text(FIGURES, **options)
    assert json.loads(text, parse_constant=refuse) == READ and ("ä" in text) == ("letters" in options)


RUNS = [
    {"name": "A", "seed": 1, "valid_curve": {1: 20.0, 2: 10.0}},
    {"name": "A", "seed": 2, "valid_curve": {1: 21.0, 2: 11.0}},
    {"name": "B", "seed": 1, "valid_curve": {1: 19.0}},
]


def test_files_name_their_origin(tmp_path):
    report = Report(text="| a |\n", figures={"runs": [1]}, command="python -m x", picture=draw_learning_curves(RUNS))
    text = report.write(tmp_path / "new/folder", name="lm_ptb")
    folder, origin = tmp_path / "new/folder", provenance.origin()
    assert (folder / "lm_ptb.md").read_text() == text
    assert text.splitlines()[0] == "| a |"
    assert text.endswith(f"\n\n`python -m x`; {origin['date']}, {origin['code']}; {origin['machine']}.\n")
    figures = json.loads((folder / "lm_ptb.json").read_text())
    assert figures == {**origin, "command": "python -m x", "runs": [1]}
    assert (folder / "lm_ptb.png").read_bytes().startswith(b"\x89PNG") and len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("names", [{"name": "a"}, {"name": "a", "figures": "b.json"}])
def test_a_second_report_replaces_the_first_and_without_a_picture_there_are_two_files(names, tmp_path):
    for text in ("first", "second"):
        Report(text=text, figures={}, command="x").write(tmp_path, **names)
    assert (tmp_path / "a.md").read_text().startswith("second\n")
    assert {path.name for path in tmp_path.iterdir()} == {"a.md", names.get("figures", "a.json")}


def test_a_curve_for_each_run_with_its_seed_where_names_repeat():
    (axes,) = draw_learning_curves(RUNS).axes
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
    picture = draw_learning_curves([{**run, "score_curves": scores} for run, scores in zip(RUNS, curves)])
    perplexity, bleu, rouge = picture.axes
    titles = [axes.get_title() for axes in picture.axes]
    assert titles == ["Validation perplexity", "Validation BLEU", "Validation ROUGE-1"]
    assert len(perplexity.lines) == 3 and bleu.get_yscale() == rouge.get_yscale() == "linear"
    (line,) = bleu.lines
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == [3.0, 5.0]
    assert (line.get_label(), line.get_color()) == ("A, seed 2: 5.00", perplexity.lines[1].get_color())
    (line,) = rouge.lines
    assert (line.get_label(), line.get_color()) == ("A, seed 1: 9.00", perplexity.lines[0].get_color())


@pytest.mark.filterwarnings("error")  # letters without a glyph are boxes
@pytest.mark.parametrize("name", ["$a_b_c$", r"$\a$", "$", "5 $ or 6 $", "a\tb\x07", "DOC, 1", "_a", "ไทย 😀"])
def test_any_name_can_be_drawn(name, tmp_path):
    picture = new_picture()
    axes = picture.subplots()
    axes.plot([1, 2], label=as_label(name))
    axes.set_title(as_label(name))
    legend = axes.legend()
    assert [text.get_text() for text in legend.get_texts()] == [as_label(name)]
    save_picture(picture, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_a_name_without_such_letters_stays():
    assert as_label("DOC,\u00a0größer") == "DOC,\u00a0größer" and as_label("a\nb") == "a\ufffdb"


def test_training_curves_of_few_runs_are_dotted():
    run = {"name": "A", "seed": 1, "valid_curve": {1: 30.0, 2: 20.0}, "train_curve": {1: 90.0, 2: 15.0}}
    (axes,) = draw_learning_curves([run]).axes
    valid, train = axes.lines
    assert list(train.get_ydata()) == [90.0, 15.0] and train.get_linestyle() == ":"
    assert train.get_color() == valid.get_color() and axes.get_ylim() == (15.0, 100.0)
    (axes,) = draw_learning_curves([{**run, "name": name} for name in "ABCDE"]).axes
    assert len(axes.lines) == 5
