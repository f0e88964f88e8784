"""Learning curves as a picture."""

from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from fairseq_plugins.reports.pictures import as_label, new_picture, write_plain_numbers
from fairseq_plugins.scoring.corpus_metrics import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MARKED = 40
"""Epochs of a curve whose points are marked."""
MOST_INSIDE = 4
"""Runs whose legend hides nothing of their curves; that of more stands beside them."""
LINE_STYLES = ("-", "--", ":", "-.")
"""Of the seeds of a system."""
MARKERS = "os^Dv"
"""Of lines of one colour and style: there are four styles and ten colours."""
INCHES_OF_ENTRY = 0.22
"""Height of a line of a legend."""


def draw_learning_curves(runs: Sequence[Dict[str, Any]]) -> "Figure":
    """Validation perplexity by epoch, one line a run, and beside it each metric by which decoded text was scored.

    Runs of one name have one colour.

    Args:
        runs: each with ``name``, ``seed`` and ``valid_curve``, and with ``score_curves`` by metric where there are any.
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
    panels[0].set(ylabel="validation perplexity", yscale="log")
    write_plain_numbers(panels[0].yaxis)
    for axes, metric in zip(panels[1:], metrics):
        _draw_lines(axes, {n: curves[metric] for n, curves in enumerate(scores) if metric in curves}, styles)
        axes.set(ylabel=f"validation {TITLES[metric]}")
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
    """Label, colour, line and marker of each run: the colour by its name, the line by its place among those of it."""
    names = [run["name"] for run in runs]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    styles = []
    for place, (name, run) in enumerate(zip(names, runs)):
        round_of_lines, line = divmod(names[:place].count(name), len(LINE_STYLES))
        label = name if names.count(name) == 1 else f"{name}, seed {run['seed']}"
        marker = MARKERS[(round_of_lines + numbers[name] // 10) % len(MARKERS)]
        colour = f"C{numbers[name]}"
        styles.append(dict(label=as_label(label), color=colour, linestyle=LINE_STYLES[line], marker=marker))
    return styles


def _draw_lines(axes: "Axes", curves: Dict[int, Dict[int, float]], styles: Sequence[Dict[str, Any]]) -> None:
    """Draw the curves of runs by their number, each in the run's style."""
    for number, curve in curves.items():
        style = styles[number] if len(curve) <= MOST_MARKED else {**styles[number], "marker": None}
        axes.plot(list(curve), list(curve.values()), markersize=4, **style)
