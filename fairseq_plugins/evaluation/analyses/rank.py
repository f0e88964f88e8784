"""Rank of the matrix of log-probabilities of a language model (Yang et al. 2018, section 2).

Shapes: N positions, V vocabulary.
"""

import math
from typing import Any

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import score_windows

WINDOW = 500
"""Positions of a forward pass."""

NOISE = 4 * math.sqrt(torch.finfo(torch.float64).eps)
"""Share of the largest singular value: eigenvalues err by a few eps of the largest, and these are their roots."""


def singular_values(model: FairseqLanguageModel, tokens: Tensor, **options: Any) -> Tensor:
    """Singular values, (V,) float64, descending, of log P(word | position) for the positions of a stream, (N, V).

    The matrix is never held: its Gram matrix (V, V) is summed in float64, window by window, and the roots of its
    eigenvalues are taken. Those below :data:`NOISE` of the largest would be rounding, and are zero.

    Args:
        model: a language model that carries its state.
        tokens: (N + 1,) int64.
        options: see :func:`~fairseq_plugins.evaluation.scored_windows.score_windows`.
    """
    gram = None
    for scored in score_windows([model], tokens, window=WINDOW, words="all", **options):
        assert scored.log_probs is not None
        rows = scored.log_probs.flatten(0, 1)
        gram = rows.new_zeros(rows.size(1), rows.size(1)) if gram is None else gram
        gram.addmm_(rows.t(), rows)
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).sqrt().cpu()
    return values.where(values > NOISE * values[0], 0.0)


def rank(values: Tensor, *, threshold: float) -> int:
    """Number of singular values above ``threshold``."""
    return int((values > threshold).sum())


def default_threshold(values: Tensor, *, num_positions: int) -> float:
    """The threshold that numerical libraries take for a matrix in float32: max(N, V) eps times the largest value."""
    return max(num_positions, len(values)) * torch.finfo(torch.float32).eps * float(values[0])
