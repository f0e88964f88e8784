"""Timescales and eigenvalues of recurrent layers, as tables and as pictures."""

import math
from typing import TYPE_CHECKING, Mapping, Sequence

from fairseq_plugins.evaluation.recurrent_matrices import Spectrum, Timescales
from fairseq_plugins.reports.pictures import new_picture
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
            *(f"{one.values[place]:.2f}" if one.values else None for place in (0, len(one.values) // 2)),
            sum(value > 10 for value in one.values),
            one.num_alternating,
            one.num_without,
        )
        for name, layers in found.items()
        for one in layers
    ]
    return as_table(columns, rows)


def draw_timescales(found: Mapping[str, Sequence[Timescales]]) -> "Figure":
    """Timescales of the units, sorted, on a logarithmic axis; a curve a layer."""
    from matplotlib.ticker import ScalarFormatter

    picture = new_picture()
    axes = picture.subplots()
    for name, layers in found.items():
        for one in layers:
            label = name if len(layers) == 1 else f"{name}, layer {one.layer}"
            axes.plot(range(1, len(one.values) + 1), one.values, label=label)
    axes.set(xlabel="hidden unit, sorted", ylabel="timescale -1 / log r, tokens", yscale="log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture


def spectrum_table(found: Mapping[str, Sequence[Spectrum]]) -> str:
    """A layer of a model a line."""
    columns = [
        "model",
        "layer",
        "eigenvalues",
        "modulus above 1",
        "largest modulus",
        "most negative real",
        "one sign in its right eigenvector, %",
        "in its left, %",
    ]
    rows = [
        (
            name,
            one.layer,
            len(one.eigenvalues),
            one.num_growing,
            f"{float(one.eigenvalues[0].abs()):.3f}",
            _number(one.most_negative, ".3f"),
            *(_number(100 * share, ".1f") for share in one.same_sign),
        )
        for name, layers in found.items()
        for one in layers
    ]
    return as_table(columns, rows)


def draw_spectra(found: Mapping[str, Sequence[Spectrum]]) -> "Figure":
    """Eigenvalues in the complex plane with the unit circle, a panel for each layer of each model."""
    from matplotlib.patches import Circle

    panels = [(name, one) for name, layers in found.items() for one in layers]
    picture = new_picture(inches=(4.2 * len(panels), 4.2))
    for axes, (name, one) in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels):
        axes.add_patch(Circle((0, 0), 1, fill=False, color="0.6"))
        axes.scatter(one.eigenvalues.real, one.eigenvalues.imag, s=6)
        if not math.isnan(one.most_negative):
            axes.annotate(f"{one.most_negative:.2f}", (one.most_negative, 0), (0, 8), textcoords="offset points")
        axes.set(title=f"{name}, layer {one.layer}", xlabel="real part", ylabel="imaginary part")
        axes.set_aspect("equal", adjustable="datalim")
        axes.grid(alpha=0.3)
    return picture


def _number(value: float, form: str) -> str:
    return "none" if math.isnan(value) else f"{value:{form}}"
