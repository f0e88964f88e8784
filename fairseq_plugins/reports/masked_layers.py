"""What models lose with masked layers, as tables and as a picture."""

from typing import TYPE_CHECKING, Sequence

from fairseq_plugins.evaluation.analyses.layer_masking import MaskedRuns
from fairseq_plugins.reports.pictures import as_label, new_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_markdown(curves: Sequence[MaskedRuns]) -> str:
    """A table for each choice of layers: a model a line, a probability a column."""
    tables = []
    for layers in dict.fromkeys(runs.layers for runs in curves):
        chosen = [runs for runs in curves if runs.layers == layers]
        probabilities = dict.fromkeys(runs.probability for runs in chosen)
        rows = [
            [model, *(f"{runs.perplexity:.2f}" for runs in chosen if runs.model == model)]
            for model in dict.fromkeys(runs.model for runs in chosen)
        ]
        tables.append(as_table([f"{_title(layers)} masked, P =", *(f"{p:g}" for p in probabilities)], rows))
    return "\n\n".join(tables)


def draw(curves: Sequence[MaskedRuns]) -> "Figure":
    """A panel for each choice of layers, a curve for each model with its runs' range."""
    from matplotlib.ticker import LogFormatter

    panels = list(dict.fromkeys(runs.layers for runs in curves))
    picture = new_picture(inches=(3.4 * len(panels), 3.6))
    all_axes = picture.subplots(1, len(panels), squeeze=False)[0]
    for axes, layers in zip(all_axes, panels):
        for model in dict.fromkeys(runs.model for runs in curves):
            chosen = [runs for runs in curves if (runs.model, runs.layers) == (model, layers)]
            chosen.sort(key=lambda runs: runs.probability)
            places = [runs.probability for runs in chosen]
            axes.plot(places, [runs.perplexity for runs in chosen], marker="o", markersize=3, label=as_label(model))
            axes.fill_between(
                places,
                [min(runs.perplexities) for runs in chosen],
                [max(runs.perplexities) for runs in chosen],
                alpha=0.2,
            )
        axes.set(title=_title(layers), xlabel="P", yscale="log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    all_axes[0].set_ylabel("perplexity")
    names = all_axes[0].get_legend_handles_labels()
    picture.legend(*names, loc="outside upper center", ncols=max(1, min(len(panels), len(names[1]))))
    return picture


def _title(layers: str) -> str:
    return "all layers" if layers == "all" else f"layer {layers}"
