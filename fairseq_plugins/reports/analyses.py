"""Tables and pictures of the analyses of trained models."""

import math
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

from fairseq_plugins.evaluation.analyses.layers import LayerCorrelation, MaskedRuns, Spectrum, Timescales
from fairseq_plugins.evaluation.analyses.words import FrequencyBand
from fairseq_plugins.evaluation.scoring import Perplexity
from fairseq_plugins.reports.tables import as_label, as_table, enclose_logarithmically, new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def correlation_row(name: str, layer: LayerCorrelation, groups: Sequence[str]) -> Dict[str, Any]:
    """Figures of a layer by column."""
    return {
        "model": name,
        "layer": layer.layer,
        "width": layer.width,
        "num_constant": layer.num_constant,
        "mean": layer.mean,
        **{group: layer.within.get(group) for group in groups},
        "between": layer.between,
    }


def correlation_table(figures: Sequence[Dict[str, Any]], groups: Sequence[str]) -> str:
    """A table with a line for each layer."""
    measured = ["mean", *groups, "between"]
    rows = [
        (
            figure["model"],
            figure["layer"],
            f"{figure['width']:,}",
            f"{figure['num_constant']:,}",
            *(None if figure[name] is None else f"{figure[name]:.4f}" for name in measured),
        )
        for figure in figures
    ]
    return as_table(["model", "layer", "width", "constant features", *measured], rows)


def frequency_table(bands: Sequence[FrequencyBand]) -> str:
    """Gains of one language model over another by word frequency, a line for each band."""
    columns = ["occurrences in train", "types", "tokens", "mean over types, %", "of the loss, %"]
    return as_table(
        columns,
        [
            (
                _band_title(band),
                f"{band.num_types:,}",
                f"{band.num_tokens:,}",
                f"{band.mean_of_types:.2f}",
                f"{band.of_the_loss:.2f}",
            )
            for band in bands
        ],
    )


def draw_frequency_bands(bands: Sequence[FrequencyBand], *, names: Sequence[str]) -> "Figure":
    """Bars of both statistics of each band. ``names`` are those of the baseline and of the other model."""
    picture = new_picture()
    axes = picture.subplots()
    positions = range(len(bands))
    for shift, values, label in (
        (-0.2, [band.mean_of_types for band in bands], "mean over types, (B - O) / O"),
        (0.2, [band.of_the_loss for band in bands], "of the band's loss, (B - O) / B"),
    ):
        axes.bar([position + shift for position in positions], values, width=0.4, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(positions, [_band_title(band) for band in bands], rotation=30, ha="right")
    axes.set_xlabel("occurrences in the training text")
    axes.set_ylabel(f"gain of {as_label(names[1])} over {as_label(names[0])}, %", wrap=True)
    axes.legend()
    return picture


def _band_title(band: FrequencyBand) -> str:
    return f"{band.lowest:,} and more" if band.below is None else f"{band.lowest:,} to {band.below - 1:,}"


def masked_layers_table(curves: Sequence[MaskedRuns]) -> str:
    """Perplexity with masked layers: a table for each choice of layers, with models by probability of masking."""
    tables = []
    for layers in dict.fromkeys(runs.layers for runs in curves):
        chosen = [runs for runs in curves if runs.layers == layers]
        probabilities = dict.fromkeys(runs.probability for runs in chosen)
        rows = [
            [model, *(f"{runs.perplexity:.2f}" for runs in chosen if runs.model == model)]
            for model in dict.fromkeys(runs.model for runs in chosen)
        ]
        tables.append(as_table([f"{_layers_title(layers)} masked, P =", *(f"{p:g}" for p in probabilities)], rows))
    return "\n\n".join(tables)


def draw_masked_layers(curves: Sequence[MaskedRuns]) -> "Figure":
    """A panel for each choice of layers, with a curve and the range of runs for each model."""
    panels = list(dict.fromkeys(runs.layers for runs in curves))
    picture = new_picture(inches=(3.4 * len(panels), 3.6))
    all_axes = picture.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, layers in zip(all_axes, panels):
        for model in dict.fromkeys(runs.model for runs in curves):
            chosen = [runs for runs in curves if (runs.model, runs.layers) == (model, layers)]
            chosen.sort(key=lambda runs: runs.probability)
            probabilities = [runs.probability for runs in chosen]
            axes.plot(
                probabilities, [runs.perplexity for runs in chosen], marker="o", markersize=3, label=as_label(model)
            )
            axes.fill_between(
                probabilities,
                [min(runs.perplexities) for runs in chosen],
                [max(runs.perplexities) for runs in chosen],
                alpha=0.2,
            )
        axes.set(title=_layers_title(layers), xlabel="P", yscale="log")
    enclose_logarithmically(all_axes[0].yaxis, [ppl for runs in curves for ppl in runs.perplexities])
    all_axes[0].set_ylabel("perplexity")
    names = all_axes[0].get_legend_handles_labels()
    picture.legend(*names, loc="outside upper center", ncols=max(1, min(len(panels), len(names[1]))))
    return picture


def _layers_title(layers: str) -> str:
    return "all layers" if layers == "all" else f"layer {layers}"


def spectrum_table(found: Mapping[str, Sequence[Spectrum]]) -> str:
    """Eigenvalues of recurrent matrices, a line for each layer of each model."""
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
            int((one.eigenvalues.abs() > 1).sum()),
            f"{float(one.eigenvalues[0].abs()):.3f}",
            _number(one.most_negative, ".3f"),
            *(_number(100 * share, ".1f") for share in one.same_sign),
        )
        for name, layers in found.items()
        for one in layers
    ]
    return as_table(columns, rows)


def draw_spectra(found: Mapping[str, Sequence[Spectrum]]) -> "Figure":
    """Eigenvalues and the unit circle in the complex plane, a panel for each layer of each model."""
    from matplotlib.patches import Circle

    panels = [(name, one) for name, layers in found.items() for one in layers]
    picture = new_picture(inches=(4.2 * len(panels), 4.2))
    for axes, (name, one) in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels):
        axes.add_patch(Circle((0, 0), 1, fill=False, color="0.6"))
        axes.scatter(one.eigenvalues.real, one.eigenvalues.imag, s=6)
        if not math.isnan(one.most_negative):
            axes.annotate(
                f"{one.most_negative:.2f}", (one.most_negative, 0), (0, 8), textcoords="offset points", ha="right"
            )
        axes.set(xlabel="real part", ylabel="imaginary part")
        axes.set_title(f"{as_label(name)}, layer {one.layer}", wrap=True)
        axes.set_aspect("equal", adjustable="datalim")
        axes.grid(alpha=0.3)
    return picture


def _number(value: float, form: str) -> str:
    return "none" if math.isnan(value) else f"{value:{form}}"


def timescale_table(found: Mapping[str, Sequence[Timescales]]) -> str:
    """Timescales of recurrent units, a line for each layer of each model."""
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
    """Sorted timescales on a logarithmic axis, a curve for each layer. Units without a timescale are left out."""
    from matplotlib.ticker import MaxNLocator

    picture = new_picture()
    axes = picture.subplots()
    for name, layers in found.items():
        for one in layers:
            layer = "" if len(layers) == 1 else f", layer {one.layer}"
            num_units = len(one.values) + one.num_alternating + one.num_without
            label = f"{as_label(name)}{layer}: {len(one.values)} of {num_units} units"
            axes.plot(range(1, len(one.values) + 1), one.values, label=label)
    axes.set(xlabel="hidden unit, sorted", ylabel="timescale -1 / log r, tokens", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    enclose_logarithmically(axes.yaxis, [value for layers in found.values() for one in layers for value in one.values])
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture


def perplexity_figures(result: Perplexity) -> Dict[str, Any]:
    """All figures of a perplexity, for JSON."""
    return {**asdict(result), "perplexity": result.perplexity, "bits_per_token": result.bits_per_token}


def perplexity_lines(result: Perplexity) -> List[str]:
    """Lines of the figures of a perplexity with their units."""
    return [
        f"tokens predicted    {result.num_tokens:,}",
        f"unknown words       {result.num_unknown:,}",
        f"leftover tokens     {result.num_leftover_tokens:,}",
        f"NLL                 {result.nll:.6f} nats per token",
        f"bits per token      {result.bits_per_token:.6f}",
        f"perplexity          {result.perplexity:.4f}",
    ]
