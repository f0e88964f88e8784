"""What a cache keeps of the last tokens of parallel rows, and which of them a token sees.

Shapes: B rows, T window length, W tokens that are kept, n <= W that were kept before a window, C tokens of a chunk, K
tokens that they see.
"""

from typing import Iterator, NamedTuple, Optional

import torch
from torch import Tensor

CHUNK_TOKENS = 128
CHUNK_ELEMENTS = 2**20
"""Most values that a chunk holds for each pair of a token and one that it sees, of all rows."""


class RecentValues:
    """A value of each of the last W tokens of a row; a long stream is copied twice at most.

    Args:
        length: W.
    """

    def __init__(self, length: int):
        self.length = length
        self._buffer: Optional[Tensor] = None
        self._end = 0

    def extend(self, values: Tensor) -> Tensor:
        """Those kept before, and these of a window, (B, n + T, *); the last W of them are kept.

        What is returned may be overwritten by the next call.

        Args:
            values: (B, T, *).
        """
        num_new = values.size(1)
        buffer = self._buffer
        num_kept = min(self.length, self._end)
        if buffer is None or self._end + num_new > buffer.size(1):
            larger = values.new_empty(values.size(0), num_kept + self.length + num_new, *values.shape[2:])
            if buffer is not None:
                larger[:, :num_kept] = buffer[:, self._end - num_kept : self._end]
            buffer, self._end = larger, num_kept
        buffer[:, self._end : self._end + num_new] = values
        self._buffer = buffer
        self._end += num_new
        return buffer[:, self._end - num_new - num_kept : self._end]


class Chunk(NamedTuple):
    """Some tokens of a window and those that they see.

    Attributes:
        tokens: C of the window's T.
        seen: K of the n + T that were kept before or stand in the window.
        band: which of them each sees, (C, K) bool.
    """

    tokens: slice
    seen: slice
    band: Tensor


def chunks(*, num_rows: int, num_tokens: int, num_kept: int, length: int, device: torch.device) -> Iterator[Chunk]:
    """All tokens of a window in order; each sees the ``length`` tokens before it, as far as there are so many.

    Args:
        num_rows: B.
        num_tokens: T.
        num_kept: n.
        length: W.
        device: of the bands.
    """
    size = max(1, min(CHUNK_TOKENS, CHUNK_ELEMENTS // (num_rows * (length + CHUNK_TOKENS))))
    for first in range(0, num_tokens, size):
        last = min(first + size, num_tokens)
        seen = slice(max(0, num_kept + first - length), num_kept + last - 1)
        before = num_kept + first - seen.start
        band = torch.ones(last - first, seen.stop - seen.start, dtype=torch.bool, device=device)
        yield Chunk(slice(first, last), seen, band.tril_(before - 1).triu_(before - length))
