"""What the layers below a mixture are read for and taught as a training goes on, as a table and as a picture."""

from typing import TYPE_CHECKING, Dict, List, Mapping

from fairseq_plugins.evaluation.analyses.layer_learning import LayerLearning
from fairseq_plugins.reports.expert_map import layer_name
from fairseq_plugins.reports.pictures import as_label, new_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = Mapping[int, LayerLearning]
"""Of a training, by the number of its updates."""

MEASURES = {"shares": "share of the words", "gradients": "gradient by word, nats"}
"""Attributes of :class:`LayerLearning`, and what they are called."""


def history_table(runs: Mapping[str, History]) -> str:
    """A checkpoint a line; shares first, then gradients."""
    layers = read_layers(runs)
    measured = [f"{measure}, {layer_name(n)}" for measure in ("share", "gradient") for n in layers]
    rows = [
        [
            name,
            f"{num_updates:,}",
            *(f"{one.shares[n]:.1%}" if n < len(one.shares) else None for n in layers),
            *(f"{one.gradients[n]:.4f}" if n < len(one.gradients) else None for n in layers),
        ]
        for name, history in runs.items()
        for num_updates, one in history.items()
    ]
    return as_table(["model", "updates", *measured], rows)


def draw_history(runs: Mapping[str, History]) -> "Figure":
    """A column for each training; above the layers' shares of the words, below the gradients they get."""
    picture = new_picture(inches=(4.2 * len(runs) + 0.6, 6))
    rows = picture.subplots(len(MEASURES), len(runs), squeeze=False, sharex="col", sharey="row")
    for (measure, title), panels in zip(MEASURES.items(), rows):
        for axes, history in zip(panels, runs.values()):
            for n in read_layers(runs):
                curve: Dict[int, List[float]] = {at: getattr(one, measure) for at, one in history.items()}
                points = [(at, values[n]) for at, values in curve.items() if n < len(values)]
                axes.plot(*zip(*points), marker=".", color=f"C{n}", label=layer_name(n))
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(title)
    for axes, name in zip(rows[0], runs):
        axes.set_title(as_label(name), loc="left", fontsize="small")
    for axes in rows[-1]:
        axes.set_xlabel("updates")
    rows[0, 0].legend()
    return picture


def read_layers(runs: Mapping[str, History]) -> List[int]:
    """The layers that some expert of some training reads, and the last."""
    found = set()
    for history in runs.values():
        for one in history.values():
            found.update(n for n, share in enumerate(one.shares) if share > 0)
            found.add(len(one.shares) - 1)
    return sorted(found)
