"""How a stream is cut into windows for truncated back-propagation through time."""

from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

FULL_WINDOW_PROBABILITY = 0.95
LENGTH_STANDARD_DEVIATION = 5.0
SHORTEST_RANDOM_WINDOW = 5


@dataclass(frozen=True)
class Window:
    """A run of predictions, the same for all rows.

    Attributes:
        start: index in the row of the first input token; targets are one token later.
        length: number of predictions T.
        nominal_length: the length that was asked for, larger than ``length`` where the row ended first.
        row_offsets: the token that each row of all processes begins with; empty where it is the first of each.
    """

    start: int
    length: int
    nominal_length: int
    row_offsets: Tuple[int, ...] = ()


def fixed_windows(num_predictions: int, *, length: int) -> List[Window]:
    """Windows of ``length`` predictions, the last one shorter where they do not divide the row."""
    return _cut(num_predictions, lambda: length)


def random_windows(
    num_predictions: int, *, length: int, max_length: Optional[int], seed: Union[int, Sequence[int]]
) -> List[Window]:
    """Windows of random lengths (Merity et al. 2018, section 4.1).

    The base is ``length`` with probability 0.95 and half of it otherwise; the length is drawn from
    Normal(base, 5), cut to a whole number, at least 5 and at most ``max_length``. ``seed`` is whatever
    :func:`numpy.random.default_rng` takes, for example (seed of the run, epoch).
    """
    generator = np.random.default_rng(seed)

    def draw() -> int:
        base = length if generator.random() < FULL_WINDOW_PROBABILITY else length / 2
        drawn = max(SHORTEST_RANDOM_WINDOW, int(generator.normal(base, LENGTH_STANDARD_DEVIATION)))
        return drawn if max_length is None else min(drawn, max_length)

    return _cut(num_predictions, draw)


def _cut(num_predictions: int, next_length: Callable[[], int]) -> List[Window]:
    windows: List[Window] = []
    start = 0
    while start < num_predictions:
        nominal_length = next_length()
        windows.append(Window(start, min(nominal_length, num_predictions - start), nominal_length))
        start += nominal_length
    return windows
