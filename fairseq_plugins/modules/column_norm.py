"""Columns of weight matrices that keep their lengths while they learn (Pachitariu & Sahani 2013).

Shapes: V words, H hidden units.
"""

from typing import Any, Dict, Optional, Sequence

import torch
from torch import Tensor

from fairseq_plugins.ops.precision import accumulation_dtype

COLUMN_NORM = "column_norm"
"""Attribute of a weight, by which optimisers find its norm."""


class ColumnNorm:
    """Matrices whose columns, all weights into a hidden unit or all out of it, have one Euclidean length.

    They are brought to it here, and after every update by
    :func:`~fairseq_plugins.optim.held_columns.hold_columns` or by an optimiser that averages, which finds this object
    as ``column_norm`` of the weights.

    Args:
        weights: each (V, H).
        length: above zero.
    """

    def __init__(self, weights: Sequence[Tensor], *, length: float):
        assert length > 0
        self.weights = list(weights)
        self.length = length
        self.is_held = False
        """Whether a task holds them after every update."""
        for weight in self.weights:
            self.normalise_(weight.data)
            setattr(weight, COLUMN_NORM, self)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Of a copy, or one that was pickled: its weights have lost what was set on them."""
        vars(self).update(state)
        for weight in self.weights:
            setattr(weight, COLUMN_NORM, self)

    def check_held(self) -> None:
        """Refuse to train where nobody holds them.

        Raises:
            ValueError: with the remedy.
        """
        if not self.is_held:
            raise ValueError("--column-norm needs --task stateful_lm, which holds it after every update")

    def normalise_(self, weight: Tensor) -> Tensor:
        """Bring the columns of a matrix (V, H) to the length; see :func:`normalise_columns_`."""
        return normalise_columns_(weight, self.length)


def column_lengths(weight: Tensor) -> Tensor:
    """The Euclidean lengths of the columns of a matrix (V, H): (H) in 32 bits at least."""
    return weight.to(accumulation_dtype(weight)).square().sum(dim=0).sqrt()


@torch.no_grad()
def normalise_columns_(weight: Tensor, length: float) -> Tensor:
    """Bring the columns of a matrix (V, H) to a length; a column of zeros stays one.

    Returns:
        what each column was divided by, (H) in 32 bits at least.
    """
    lengths = column_lengths(weight)
    divisors = torch.where(lengths > 0, lengths / length, 1)
    weight.div_(divisors)
    return divisors


def column_norm(weight: Tensor) -> Optional[ColumnNorm]:
    """What holds the columns of a weight, or None."""
    return getattr(weight, COLUMN_NORM, None)
