"""How much the features of a layer's output depend on each other.

Shapes: N positions, D_n width of layer n.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Dict, List, Optional

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import score_windows


@dataclass(frozen=True)
class LayerCorrelation:
    """Mean absolute correlation over pairs of different features of one layer, between 0 and 1.

    A mean is None where there is no pair.

    Attributes:
        layer: number of the layer, from 1 on.
        width: D_n.
        num_constant: features that never change; they take part in no pair.
        mean: over all pairs.
        within: over the pairs within each of the layer's groups of features, by name.
        between: over the pairs of features of different groups.
    """

    layer: int
    width: int
    num_constant: int
    mean: Optional[float]
    within: Dict[str, Optional[float]]
    between: Optional[float]


def correlation_matrices(model: FairseqLanguageModel, tokens: Tensor, **options: Any) -> List[Tensor]:
    """Pearson correlations, (D_n, D_n) float64, of the features of each layer over the positions of a stream.

    Rows of features that never change are NaN. Sums are taken window by window; no output is kept.

    Args:
        model: a language model that carries its state.
        tokens, options: see :func:`~fairseq_plugins.evaluation.scored_windows.score_windows`.
    """
    sums = [_Sums() for _ in model.decoder.stack.layers]
    for window in score_windows([model], tokens, **options):
        for layer_sums, output in zip(sums, window.states[0].layers[1:]):
            layer_sums.add(output.flatten(0, 1).double())
    return [layer_sums.correlations().cpu() for layer_sums in sums]


def layer_correlations(model: FairseqLanguageModel, tokens: Tensor, **options: Any) -> List[LayerCorrelation]:
    """Mean absolute correlation within each layer, bottom first; see :func:`correlation_matrices`."""
    found = []
    for n, (matrix, layer) in enumerate(
        zip(correlation_matrices(model, tokens, **options), model.decoder.stack.layers), start=1
    ):
        absolute = matrix.abs().fill_diagonal_(float("nan"))
        of_different_groups = torch.zeros_like(absolute, dtype=torch.bool)
        for one, other in combinations(layer.feature_groups.values(), 2):
            of_different_groups[one, other] = True
        found.append(
            LayerCorrelation(
                layer=n,
                width=len(matrix),
                num_constant=int(matrix.diagonal().isnan().sum()),
                mean=_mean(absolute),
                within={name: _mean(absolute[group, group]) for name, group in layer.feature_groups.items()},
                between=_mean(absolute[of_different_groups]),
            )
        )
    return found


class _Sums:
    """What the correlations of a layer's features are formed of, summed over positions."""

    def __init__(self) -> None:
        self.num_positions = 0
        self.origin: Optional[Tensor] = None
        self.sum = self.products = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Add positions, (N, D_n) float64."""
        if self.origin is None:
            # near the mean, so that little is lost when the product of means is taken off
            self.origin = x.mean(dim=0)
        x = x - self.origin
        self.sum = self.sum + x.sum(dim=0)
        self.products = self.products + x.t() @ x
        self.num_positions += len(x)

    def correlations(self) -> Tensor:
        """Of the positions so far, (D_n, D_n)."""
        mean = self.sum / self.num_positions
        covariance = self.products / self.num_positions - torch.outer(mean, mean)
        deviations = covariance.diagonal().clamp(min=0).sqrt()
        deviations = deviations.masked_fill(deviations < 1e-12, float("nan"))
        return covariance / torch.outer(deviations, deviations)


def _mean(absolute: Tensor) -> Optional[float]:
    mean = absolute.nanmean().item()
    return None if math.isnan(mean) else mean
