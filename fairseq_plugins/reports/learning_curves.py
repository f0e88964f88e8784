"""Learning curves of runs: their table and picture, and validation against training perplexity.

Runs have ``name``, ``seed`` and the figures of their :class:`TrainingLog`.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from fairseq_plugins.metrics.corpus import TITLES
from fairseq_plugins.options import UserError
from fairseq_plugins.reports.pictures import as_label, enclose_logarithmically, new_picture
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import Cell, as_table, table_of_runs
from fairseq_plugins.reports.training_log import TrainingLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = Dict[str, Any]
"""Figures of a run by name, for JSON."""

MOST_MARKED = 40
"""A curve with twice as many epochs has a marker at every second one, and so on."""
MOST_INSIDE = 4
"""With more runs, the legend stands beside the curves, because it would hide them."""
LINE_STYLES = ("-", "--", ":", "-.")
"""For the seeds of a system."""
MARKERS = "os^Dv"
"""For lines of equal colour and style. There are four styles and ten colours."""
INCHES_OF_ENTRY = 0.22
"""Height of an entry of a legend."""


def learning_report(runs: Sequence[Figures]) -> Report:
    """Table and picture of the learning curves: a line for each run, with means over the seeds of one name.

    If runs of a name still train, so that their epochs differ, there is no mean of their last perplexities.
    """
    epochs = {figures["name"]: {one["epochs"] for one in runs if one["name"] == figures["name"]} for figures in runs}
    table = table_of_runs(
        runs,
        lambda figures: {
            "seed": Cell(figures["seed"], "d", mean="none"),
            "epochs": Cell(figures["epochs"], "d", mean="none"),
            "last valid perplexity": Cell(
                figures["valid_curve"][figures["epochs"]],
                mean="taken" if len(epochs[figures["name"]]) == 1 else "none",
            ),
            **best_valid_cells(figures),
            **cost_cells(figures),
        },
        column="training",
    )
    return Report({"runs": runs}, table, lambda: draw_learning_curves(runs))


def best_valid_cells(figures: Figures) -> Dict[str, Cell]:
    """Best validation figures over all epochs, each figure by itself."""
    return {
        "lowest valid perplexity": Cell(figures["lowest_valid_perplexity"]),
        **{f"highest valid {TITLES[metric]}": Cell(score) for metric, score in figures["highest_valid_scores"].items()},
    }


def cost_cells(figures: Figures) -> Dict[str, Cell]:
    """Speed and duration of the run."""
    return {
        "words per second": Cell(figures["words_per_second"], ",.0f", mean="none"),
        "hours": Cell(figures["hours"], mean="none"),
    }


def draw_learning_curves(runs: Sequence[Figures]) -> "Figure":
    """Curves of validation perplexity by epoch, and beside them curves of each metric of decoded text.

    Runs of one name share a colour.

    Args:
        runs: ``name``, ``seed``, ``valid_curve``, optional ``train_curve``, which is dotted if there are few runs, and
            optional ``score_curves`` by metric for each run.
    """
    from matplotlib.ticker import MaxNLocator

    styles = _styles(runs)
    scores = [run.get("score_curves", {}) for run in runs]
    metrics = [metric for metric in TITLES if any(metric in curves for curves in scores)]
    are_many = len(runs) > MOST_INSIDE
    height = max(4.2, INCHES_OF_ENTRY * (2 + len(runs)))
    picture = new_picture(inches=(7 * (1 + len(metrics)) + 3.5 * are_many, height))
    panels = picture.subplots(1, 1 + len(metrics), squeeze=False)[0]
    _draw_lines(panels[0], dict(enumerate(run["valid_curve"] for run in runs)), styles)
    train_curves: List[Dict[int, float]] = [{} if are_many else run.get("train_curve", {}) for run in runs]
    for curve, style in zip(train_curves, styles):
        if curve:
            panels[0].plot(list(curve), list(curve.values()), color=style["color"], linestyle=":", linewidth=1)
    title = "Validation perplexity" + (", dotted: training" if any(train_curves) else "")
    panels[0].set(ylabel="perplexity (log scale)", title=title, yscale="log")
    curves = [*(run["valid_curve"] for run in runs), *train_curves]
    enclose_logarithmically(panels[0].yaxis, [ppl for curve in curves for ppl in curve.values()])
    for axes, metric in zip(panels[1:], metrics):
        _draw_lines(axes, {n: curves[metric] for n, curves in enumerate(scores) if metric in curves}, styles)
        axes.set(ylabel=TITLES[metric], title=f"Validation {TITLES[metric]}")
    for axes in panels:
        axes.set(xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3, which="both")
        if not are_many:
            axes.legend()
    if are_many:
        picture.legend(handles=panels[0].lines, loc="outside right upper")
    return picture


def _styles(runs: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Label, colour, line style and marker of each run. The name decides the colour, the seed the line style."""
    names = [run["name"] for run in runs]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    styles = []
    for index, (name, run) in enumerate(zip(names, runs)):
        round_of_lines, line = divmod(names[:index].count(name), len(LINE_STYLES))
        label = name if names.count(name) == 1 else f"{name}, seed {run['seed']}"
        marker = MARKERS[(round_of_lines + numbers[name] // 10) % len(MARKERS)]
        colour = f"C{numbers[name]}"
        styles.append(dict(label=as_label(label), color=colour, linestyle=LINE_STYLES[line], marker=marker))
    return styles


def _draw_lines(axes: "Axes", curves: Dict[int, Dict[int, float]], styles: Sequence[Dict[str, Any]]) -> None:
    """Draw the curves of runs, given by their number, in their styles. The legend has the last value of each."""
    for number, curve in curves.items():
        style, every = styles[number], max(1, len(curve) // MOST_MARKED)
        last = f": {curve[max(curve)]:.2f}" if curve else ""
        label = style["label"] + last
        axes.plot(list(curve), list(curve.values()), markersize=4, markevery=every, **{**style, "label": label})


# Generalization.


@dataclass(frozen=True, kw_only=True)
class Generalization:
    """Training and validation perplexity of a run by epoch.

    Training perplexity is the mean over the updates of the epoch, with dropout. Validation follows the epoch.
    """

    name: str
    train: Dict[int, float]
    valid: Dict[int, float]

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation perplexity. NaN counts as highest."""
        return min(self.valid, key=lambda epoch: (math.isnan(self.valid[epoch]), self.valid[epoch]))

    def valid_at(self, level: float) -> Optional[float]:
        """Validation perplexity at the point where training perplexity first falls to a level.

        Between two epochs, the logarithms of both are interpolated linearly. None if no two epochs with finite
        perplexities enclose the level.
        """
        points = list(zip(self.train.values(), self.valid.values()))
        for (above, before), (below, after) in zip(points, points[1:]):
            if above >= level >= below and all(map(math.isfinite, (above, before, after))):
                fraction = math.log(above / level) / math.log(above / below) if above > below else 0.0
                return before * (after / before) ** fraction
        return None


def read_generalization(name: str, save_dir: Path) -> Generalization:
    """Read the log of a run. Epochs without both perplexities are left out.

    Raises UserError or OSError if there is no log, or no epoch with both.
    """
    log = TrainingLog(save_dir)
    train, valid = log.train_curve, log.valid_curve
    if not train:
        raise UserError(f"{log.path} holds no training perplexity: the criterion logs none, or no epoch was finished")
    epochs = [epoch for epoch in train if epoch in valid]
    if not epochs:
        raise UserError(f"{log.path} holds no epoch that was finished and validated")
    return Generalization(
        name=name, train={epoch: train[epoch] for epoch in epochs}, valid={epoch: valid[epoch] for epoch in epochs}
    )


def generalization_report(runs: Sequence[Generalization], *, levels: Sequence[float]) -> Report:
    """Best epoch of each run, and validation perplexities where training perplexity is at each of the levels."""
    figures = [
        {
            **asdict(run),
            "best_epoch": run.best_epoch,
            "valid_at": [{"train": level, "valid": run.valid_at(level)} for level in levels],
        }
        for run in runs
    ]
    columns = ["model", "best epoch", "train", "valid", *(f"valid at train {level:g}" for level in levels)]
    rows: List[List[object]] = []
    for run in runs:
        best, at = run.best_epoch, [run.valid_at(level) for level in levels]
        cells = [None if valid is None else f"{valid:.2f}" for valid in at]
        rows.append([run.name, best, f"{run.train[best]:.2f}", f"{run.valid[best]:.2f}", *cells])
    return Report({"runs": figures}, as_table(columns, rows), lambda: draw_generalization(runs))


def draw_generalization(runs: Sequence[Generalization]) -> "Figure":
    """Curves of validation against training perplexity, a point for each epoch. Training moves to the right."""
    picture = new_picture()
    axes = picture.subplots()
    for run in runs:
        marker = "o" if len(run.train) <= MOST_MARKED else None
        axes.plot(
            list(run.train.values()), list(run.valid.values()), marker=marker, markersize=4, label=as_label(run.name)
        )
    axes.set(
        xlabel="training perplexity (log scale)", ylabel="validation perplexity (log scale)", xscale="log", yscale="log"
    )
    enclose_logarithmically(axes.xaxis, [value for run in runs for value in run.train.values()])
    enclose_logarithmically(axes.yaxis, [value for run in runs for value in run.valid.values()])
    axes.invert_xaxis()
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture
