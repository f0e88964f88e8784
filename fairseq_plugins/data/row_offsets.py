"""Where each row of a stream begins: partial shuffle (Press 2019)."""

from typing import Sequence, Tuple, Union

import numpy as np

ROW_OFFSETS = ("none", "random")
"""Whether rows begin where they were cut, or in every epoch somewhere else."""


def random_row_offsets(num_rows: int, row_length: int, *, seed: Union[int, Sequence[int]]) -> Tuple[int, ...]:
    """A number of tokens for each row by which it is rotated, uniform in [0, ``row_length``).

    ``seed`` is whatever :func:`numpy.random.default_rng` takes.
    """
    return tuple(np.random.default_rng(seed).integers(row_length, size=num_rows).tolist())
