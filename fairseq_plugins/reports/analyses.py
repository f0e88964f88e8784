"""Reports of the analyses of trained models: figures, table and picture of each."""

import math
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

import torch
from torch import Tensor

from fairseq_plugins.evaluation.analyses.experts import default_threshold, rank
from fairseq_plugins.evaluation.analyses.layers import LayerCorrelation, MaskedRuns, Spectrum, Timescales
from fairseq_plugins.evaluation.analyses.words import FrequencyBand, RaisedWord
from fairseq_plugins.evaluation.scoring import Perplexity
from fairseq_plugins.reports.pictures import as_label, enclose_logarithmically, new_picture
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def correlation_report(found: Mapping[str, Sequence[LayerCorrelation]]) -> Report:
    """Correlations of features, a line for each layer of each model."""
    layers = [(name, layer) for name, of_model in found.items() for layer in of_model]
    # one set of columns for all models, including those of the Major-Minor LSTM, so that tables can be joined
    groups = list(dict.fromkeys(["major", "minor", *(group for _, layer in layers for group in layer.within)]))
    figures: List[Dict[str, Any]] = [
        {
            "model": name,
            "layer": layer.layer,
            "width": layer.width,
            "num_constant": layer.num_constant,
            "mean": layer.mean,
            **{group: layer.within.get(group) for group in groups},
            "between": layer.between,
        }
        for name, layer in layers
    ]
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
    return Report({"layers": figures}, as_table(["model", "layer", "width", "constant features", *measured], rows))


def rank_report(values: Tensor, *, num_positions: int, threshold: float) -> Report:
    """Rank of log-probabilities by their singular values (V,), with a threshold and with the default one."""
    default = default_threshold(values, num_positions=num_positions)
    figures = {
        "positions": num_positions,
        "words": len(values),
        "largest": float(values[0]),
        "threshold": threshold,
        "rank": rank(values, threshold=threshold),
        "default_threshold": default,
        "rank_at_default_threshold": rank(values, threshold=default),
    }
    text = (
        f"positions, words           {num_positions:,}, {len(values):,}\n"
        f"largest singular value     {figures['largest']:,.1f}\n"
        f"rank: values above {threshold:<8g}{figures['rank']:,}\n"
        f"values above {default:<14.4g}{figures['rank_at_default_threshold']:,} "
        "(threshold: max(positions, words) x float32's eps x largest)"
    )
    return Report(figures, text)


def gate_words_report(raised: Mapping[str, Sequence[RaisedWord]]) -> Report:
    """Words that a gate raises, a line each, by the word before them."""
    figures = {"words": {word: [asdict(one) for one in found] for word, found in raised.items()}}
    rows = [(word, one.word, f"{one.gate:.4f}", f"{one.count:,}") for word, found in raised.items() for one in found]
    return Report(figures, as_table(["input word", "raised word", "gate", "occurrences in train"], rows))


def frequency_report(bands: Sequence[FrequencyBand], *, names: Sequence[str]) -> Report:
    """Gains by word frequency, a line for each band. ``names`` has the baseline's, then the other model's."""
    columns = ["occurrences in train", "types", "tokens", "mean over types, %", "of the loss, %"]
    rows = [
        (
            _band_title(band),
            f"{band.num_types:,}",
            f"{band.num_tokens:,}",
            f"{band.mean_of_types:.2f}",
            f"{band.of_the_loss:.2f}",
        )
        for band in bands
    ]
    figures = {"bands": [asdict(band) for band in bands]}
    return Report(figures, as_table(columns, rows), lambda: draw_frequency_bands(bands, names=names))


def draw_frequency_bands(bands: Sequence[FrequencyBand], *, names: Sequence[str]) -> "Figure":
    """Bars of both statistics of each band."""
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


def masking_report(curves: Sequence[MaskedRuns]) -> Report:
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
    figures = {"curves": [asdict(runs) for runs in curves]}
    return Report(figures, "\n\n".join(tables), lambda: draw_masked_layers(curves))


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


def spectrum_report(found: Mapping[str, Sequence[Spectrum]]) -> Report:
    """Eigenvalues of recurrent matrices, in JSON pairs of real numbers, a line for each layer of each model."""
    figures = [
        {
            "name": name,
            "layers": [{**asdict(one), "eigenvalues": torch.view_as_real(one.eigenvalues).tolist()} for one in layers],
        }
        for name, layers in found.items()
    ]
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
    return Report({"models": figures}, as_table(columns, rows), lambda: draw_spectra(found))


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


def timescale_report(found: Mapping[str, Sequence[Timescales]]) -> Report:
    """Timescales of recurrent units, a line for each layer of each model."""
    figures = [{"name": name, "layers": [asdict(one) for one in layers]} for name, layers in found.items()]
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
    return Report({"models": figures}, as_table(columns, rows), lambda: draw_timescales(found))


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


def perplexity_report(result: Perplexity, *lines: str, **more: Any) -> Report:
    """A perplexity, a line for each figure with its unit, and ``lines`` of ``more`` figures."""
    figures = {**asdict(result), "perplexity": result.perplexity, "bits_per_token": result.bits_per_token, **more}
    own = [
        f"tokens predicted    {result.num_tokens:,}",
        f"unknown words       {result.num_unknown:,}",
        f"leftover tokens     {result.num_leftover_tokens:,}",
        f"NLL                 {result.nll:.6f} nats per token",
        f"bits per token      {result.bits_per_token:.6f}",
        f"perplexity          {result.perplexity:.4f}",
    ]
    return Report(figures, "\n".join([*own, *lines]))
