"""How much the features of a layer's output depend on each other.

Shapes: N positions, D_n width of layer n.
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.layer_outputs import changed_layer_outputs
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity
from fairseq_plugins.modules.major_minor_lstm import MajorMinorLSTM


@dataclass(frozen=True)
class LayerCorrelation:
    """Mean absolute correlation over pairs of different features of one layer, between 0 and 1.

    Attributes:
        layer: number of the layer, from 1 on.
        width: D_n.
        num_constant: features that never change; they take part in no pair.
        mean: over all pairs.
        major, minor, between: over the pairs within the major LSTM, within the minor, and of one each.
    A mean is None where there is no pair.
    """

    layer: int
    width: int
    num_constant: int
    mean: Optional[float]
    major: Optional[float] = None
    minor: Optional[float] = None
    between: Optional[float] = None


def correlation_matrices(model: FairseqLanguageModel, tokens: Tensor, **options) -> List[Tensor]:
    """Pearson correlations, (D_n, D_n) float64, of the features of each layer over the positions of a stream.

    Rows of features that never change are NaN. Sums are taken window by window; no output is kept.

    Args:
        model, tokens, options: as :func:`~fairseq_plugins.evaluation.perplexity.evaluate_perplexity`.
    """
    sums: Dict[int, Tensor] = {}
    products: Dict[int, Tensor] = {}
    origins: Dict[int, Tensor] = {}
    num_positions: Dict[int, int] = {}

    def collect(n: int, output: Tensor) -> Tensor:
        x = output.flatten(0, 1).double()
        if n not in origins:
            # near the mean, so that little is lost when the product of means is taken off
            origins[n] = x.mean(dim=0)
            sums[n], products[n], num_positions[n] = 0, 0, 0
        x = x - origins[n]
        sums[n] = sums[n] + x.sum(dim=0)
        products[n] = products[n] + x.t() @ x
        num_positions[n] += len(x)
        return output

    with changed_layer_outputs(model, collect):
        evaluate_perplexity([model], tokens, **options)
    matrices = []
    for n in sorted(origins):
        mean = sums[n] / num_positions[n]
        covariance = products[n] / num_positions[n] - torch.outer(mean, mean)
        deviations = covariance.diagonal().clamp(min=0).sqrt()
        deviations = deviations.masked_fill(deviations < 1e-12, float("nan"))
        matrices.append((covariance / torch.outer(deviations, deviations)).cpu())
    return matrices


def layer_correlations(model: FairseqLanguageModel, tokens: Tensor, **options) -> List[LayerCorrelation]:
    """Mean absolute correlation within each layer, bottom first; see :func:`correlation_matrices`."""
    found = []
    for n, (matrix, layer) in enumerate(
        zip(correlation_matrices(model, tokens, **options), model.decoder.stack.layers), start=1
    ):
        absolute = matrix.abs().fill_diagonal_(float("nan"))
        parts = {}
        if isinstance(layer, MajorMinorLSTM):
            major = layer.sizes[0]
            parts = {
                "major": _mean(absolute[:major, :major]),
                "minor": _mean(absolute[major:, major:]),
                "between": _mean(absolute[:major, major:]),
            }
        num_constant = int(matrix.diagonal().isnan().sum())
        mean = _mean(absolute)
        found.append(LayerCorrelation(layer=n, width=len(matrix), num_constant=num_constant, mean=mean, **parts))
    return found


def _mean(absolute: Tensor) -> Optional[float]:
    mean = absolute.nanmean().item()
    return None if math.isnan(mean) else mean
