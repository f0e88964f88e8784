"""Correlations of the features of layers as a table."""

from typing import Any, Dict, Sequence

from fairseq_plugins.evaluation.analyses.feature_correlation import LayerCorrelation
from fairseq_plugins.reports.tables import as_table


def as_row(name: str, layer: LayerCorrelation, groups: Sequence[str]) -> Dict[str, Any]:
    """The figures of a layer by column."""
    return {
        "model": name,
        "layer": layer.layer,
        "width": layer.width,
        "num_constant": layer.num_constant,
        "mean": layer.mean,
        **{group: layer.within.get(group) for group in groups},
        "between": layer.between,
    }


def as_markdown(figures: Sequence[Dict[str, Any]], groups: Sequence[str]) -> str:
    """A layer a line."""
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
