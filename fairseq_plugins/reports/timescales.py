"""Timescales of recurrent units, as a table and as a picture."""

from statistics import median
from typing import TYPE_CHECKING, Mapping, Sequence

from fairseq_plugins.evaluation.analyses.timescales import Timescales
from fairseq_plugins.reports.pictures import as_label, new_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def timescale_table(found: Mapping[str, Sequence[Timescales]]) -> str:
    """A layer of a model a line."""
    columns = ["model", "layer", "longest, tokens", "median", "above 10 tokens", "alternating", "none"]
    rows = [
        (
            name,
            one.layer,
            *(f"{of_units(one.values):.2f}" if one.values else None for of_units in (max, median)),
            sum(value > 10 for value in one.values),
            one.num_alternating,
            one.num_without,
        )
        for name, layers in found.items()
        for one in layers
    ]
    return as_table(columns, rows)


def draw_timescales(found: Mapping[str, Sequence[Timescales]]) -> "Figure":
    """Timescales of the units that have one, sorted, on a logarithmic axis; a curve a layer."""
    from matplotlib.ticker import ScalarFormatter

    picture = new_picture()
    axes = picture.subplots()
    for name, layers in found.items():
        for one in layers:
            layer = "" if len(layers) == 1 else f", layer {one.layer}"
            label = f"{as_label(name)}{layer}: {len(one.values)} of {one.num_units} units"
            axes.plot(range(1, len(one.values) + 1), one.values, label=label)
    axes.set(xlabel="hidden unit, sorted", ylabel="timescale -1 / log r, tokens", yscale="log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture
