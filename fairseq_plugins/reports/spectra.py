"""Eigenvalues of recurrent matrices, as a table and as a picture."""

import math
from typing import TYPE_CHECKING, Mapping, Sequence

from fairseq_plugins.evaluation.analyses.spectra import Spectrum
from fairseq_plugins.reports.pictures import as_label, new_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        axes.set(xlabel="real part", ylabel="imaginary part")
        axes.set_title(f"{as_label(name)}, layer {one.layer}", wrap=True)
        axes.set_aspect("equal", adjustable="datalim")
        axes.grid(alpha=0.3)
    return picture


def _number(value: float, form: str) -> str:
    return "none" if math.isnan(value) else f"{value:{form}}"
