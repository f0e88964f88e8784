"""A corpus as parallel streams (rows), and their windows for truncated back-propagation through time.

Shapes: B rows of this process, T length of a window.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_plugins.options import UserError

FULL_WINDOW_PROBABILITY = 0.95
LENGTH_STANDARD_DEVIATION = 5.0
SHORTEST_RANDOM_WINDOW = 5

TOKENS_AT_ONCE = 2**20
"""Tokens that are hashed at a time."""


@dataclass(frozen=True)
class Window:
    """A range of predictions, the same for all rows.

    Attributes:
        start: index in the row of the first input token. Targets are one token later.
        length: number of predictions T.
        nominal_length: the requested length. It exceeds ``length`` where the row ends first.
        row_offsets: the token at which each row of all processes begins. Empty: each begins with its first.
    """

    start: int
    length: int
    nominal_length: int
    row_offsets: Tuple[int, ...] = ()


def fixed_windows(num_predictions: int, *, length: int) -> List[Window]:
    """Windows of ``length`` predictions. The last one may be shorter."""
    return _divide(num_predictions, lambda: length)


def random_windows(
    num_predictions: int, *, length: int, max_length: Optional[int], seed: Union[int, Sequence[int]]
) -> List[Window]:
    """Windows of random lengths (Merity et al. 2018, section 4.1).

    The base is ``length`` with probability 0.95 and half of it otherwise. The length is drawn from
    Normal(base, 5), truncated to an integer, at least 5 and at most ``max_length``. ``seed`` is an argument of
    :func:`numpy.random.default_rng`, for example (seed of the run, epoch).
    """
    generator = np.random.default_rng(seed)

    def draw() -> int:
        base = length if generator.random() < FULL_WINDOW_PROBABILITY else length / 2
        drawn = max(SHORTEST_RANDOM_WINDOW, int(generator.normal(base, LENGTH_STANDARD_DEVIATION)))
        return drawn if max_length is None else min(drawn, max_length)

    return _divide(num_predictions, draw)


def random_row_offsets(num_rows: int, row_length: int, *, seed: Union[int, Sequence[int]]) -> Tuple[int, ...]:
    """Offsets by which rows are rotated, uniform in [0, ``row_length``): partial shuffling (Press 2019).

    ``seed`` is an argument of :func:`numpy.random.default_rng`.
    """
    return tuple(np.random.default_rng(seed).integers(row_length, size=num_rows).tolist())


def _divide(num_predictions: int, next_length: Callable[[], int]) -> List[Window]:
    windows: List[Window] = []
    start = 0
    while start < num_predictions:
        nominal_length = next_length()
        windows.append(Window(start, min(nominal_length, num_predictions - start), nominal_length))
        start += nominal_length
    return windows


class TokenStream(FairseqDataset):
    """A split as one token stream. It becomes :class:`ContiguousStreams` once the number of rows is known.

    Args:
        tokens: (n,) int64, with an end mark after every line.
        split: name of the split.
        in_training: whether it is trained on. The training text may be loaded for scoring, too.
    """

    def __init__(self, tokens: Tensor, split: str, *, in_training: bool = False):
        self.tokens = tokens
        self.split = split
        self.in_training = in_training

    def __len__(self) -> int:
        return self.tokens.numel()


class ContiguousStreams(FairseqDataset):
    """One long token stream as rows of equal length, indexed by :class:`Window`.

    The stream is divided into ``num_rows`` rows. The tokens at the end that do not fill a row are unused
    (:attr:`num_leftover_tokens`). Each process owns B of the rows. Inputs and targets of a row overlap by one token, so
    every token of the row except the first is predicted exactly once. A window with offsets rotates the rows: a row
    begins with the token at its offset, and its first token follows its last.

    Args:
        tokens: the corpus, (n,) int64, with an end mark after every line.
        name: name of the stream, the key under which models carry its state.
        num_rows: rows of all processes together.
        own_rows: indices of this process's rows among them, by default all.

    Attributes:
        rows: tokens of this process's rows, (B, L).
        own_rows, num_rows: as given.

    Raises:
        UserError: if a row would have fewer than two tokens.
    """

    def __init__(self, tokens: Tensor, *, name: str, num_rows: int, own_rows: slice = slice(None)):
        row_length = tokens.numel() // num_rows
        if row_length < 2:
            raise UserError(
                f"the corpus has {tokens.numel():,} tokens, too few for {num_rows:,} rows of at least 2: "
                "use a larger corpus or a smaller --batch-size (--batch-size-valid for validation)"
            )
        self.name = name
        rows = tokens[: num_rows * row_length].view(num_rows, row_length)
        self.num_rows = num_rows
        self.own_rows = own_rows
        self.rows = rows[own_rows]
        self._all_rows = rows
        self.num_leftover_tokens = tokens.numel() - rows.numel()

    def __len__(self) -> int:
        """Number of predictions of a row: all tokens except the first."""
        return self.rows.size(1) - 1

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tokens of all rows, in hexadecimal digits. Tells on resuming whether the text has changed."""
        found = hashlib.sha256()
        for tokens in self._all_rows.flatten().split(TOKENS_AT_ONCE):
            found.update(tokens.int().numpy().tobytes())
        return found.hexdigest()

    def describe(self) -> str:
        """The division into rows, for a log."""
        return (
            f"{self.name}: {self.num_rows:,} rows of {len(self) + 1:,} tokens, {self.num_rows * len(self):,} "
            f"predictions; {self.num_leftover_tokens:,} leftover tokens at the end of the corpus do not fill a row and "
            "are unused"
        )

    def __getitem__(self, window: Window) -> Dict[str, Any]:
        num_rows = self.rows.size(0)
        tokens = self._tokens(window)
        return {
            "id": torch.arange(num_rows),
            "nsentences": num_rows,
            "ntokens": num_rows * window.length,
            "net_input": {
                "src_tokens": tokens[:, :-1].contiguous(),
                "src_lengths": torch.full((num_rows,), window.length),
                "stream": self.name,
                "position": window.start,
            },
            "target": tokens[:, 1:].contiguous(),
            "nominal_length": window.nominal_length,
        }

    def _tokens(self, window: Window) -> Tensor:
        """Inputs and the last target of a window, (B, T + 1)."""
        end = window.start + window.length + 1
        if not window.row_offsets:
            return self.rows[:, window.start : end]
        offsets = torch.tensor(window.row_offsets[self.own_rows])
        positions = (offsets.unsqueeze(1) + torch.arange(window.start, end)) % self.rows.size(1)
        return self.rows.gather(1, positions)

    def collater(self, samples: List[Dict[str, Any]]) -> Dict[str, Any]:
        """A batch is one window."""
        (sample,) = samples
        return sample
