"""Columns of weight matrices that keep their lengths while they learn (Pachitariu & Sahani 2013).

Shapes: V words, H hidden units.
"""

from typing import Optional, Sequence

import torch
from torch import Tensor


class ColumnNorm:
    """Matrices whose columns, all weights into a hidden unit or all out of it, have one Euclidean length.

    They are brought to it here, and after every update by :func:`~fairseq_plugins.optim.held_columns.hold_columns`.

    Args:
        weights: each (V, H).
        length: above zero.
    """

    def __init__(self, weights: Sequence[Tensor], *, length: float):
        assert length > 0
        self.weights = list(weights)
        self.length = length
        self.was_held = False
        """Whether the last update has brought the columns back."""
        self._began: Optional[int] = None
        for weight in self.weights:
            self.normalise_(weight.data)

    def begin_update(self, num_updates: int) -> None:
        """Note that an update begins after so many.

        Raises:
            ValueError: if the columns were not held after the one before.
        """
        if self._began is not None and num_updates > self._began and not self.was_held:
            raise ValueError("--column-norm needs --task stateful_lm, which holds it after every update")
        if num_updates != self._began:
            self.was_held = False
        self._began = num_updates

    @torch.no_grad()
    def normalise_(self, weight: Tensor) -> None:
        """Bring the columns of a matrix (V, H) to the length; a column of zeros stays one."""
        lengths = torch.linalg.vector_norm(weight, dim=0, dtype=torch.promote_types(weight.dtype, torch.float32))
        weight.mul_((self.length / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).to(weight.dtype))
