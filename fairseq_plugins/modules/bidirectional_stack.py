"""Bidirectional recurrent encoder whose directions are summed.

Shapes: B sentences, S positions, C input width, D_n width of layer n, N index of the last layer.
"""

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.recurrent_stack import RecurrentStack, StackState

MERGES = ("top", "layer")
"""Where the directions are summed: once at the top, or after every layer, the sum feeding the next."""


class BidirectionalStack(nn.Module):
    """Two recurrent stacks, one of which reads the sentences backwards.

    Annotations are the sums of both directions' outputs, and the state that is handed over to a decoder is the sum
    of both final states, layer by layer. Padding may stand anywhere before or after a sentence and changes nothing.

    Args:
        input_size: C.
        hidden_sizes: D_1 .. D_N.
        cell: a value of ``--rnn-cell``.
        merge: a value of :data:`MERGES`.
        hidden_dropout: standard dropout rate between layers.

    Shape:
        x: (B, S, C); padding: (B, S), True where no token is, or None;
        output: annotations (B, S, D_N), zero at padding, and the state, one entry a layer.

    Raises:
        ValueError: on an unknown merge, and as :class:`RecurrentStack`.
    """

    def __init__(self, input_size: int, hidden_sizes: Sequence[int], *, cell: str, merge: str, hidden_dropout: float):
        super().__init__()
        if merge not in MERGES:
            raise ValueError(f"--encoder-merge {merge}: choose one of {', '.join(MERGES)}")
        stages: List[Tuple[int, Sequence[int]]] = [(input_size, hidden_sizes)]
        if merge == "layer":
            stages = [(size, [width]) for size, width in zip([input_size, *hidden_sizes[:-1]], hidden_sizes)]
        self.forwards, self.backwards = (
            nn.ModuleList(
                RecurrentStack(size, widths, cell=cell, hidden_dropout=hidden_dropout, shared_mask_dims=())
                for size, widths in stages
            )
            for _ in range(2)
        )
        self.between = nn.Dropout(hidden_dropout)

    def forward(self, x: Tensor, padding: Optional[Tensor] = None) -> Tuple[Tensor, StackState]:
        orders = _Orders(x, padding)
        state: StackState = []
        for n, (ahead, back) in enumerate(zip(self.forwards, self.backwards)):
            x = self.between(x) if n > 0 else x
            read_ahead = ahead(orders.ahead(x), leading_padding=orders.leading_padding)
            read_back = back(orders.back(x), leading_padding=orders.leading_padding)
            x = orders.restore_ahead(read_ahead.top) + orders.restore_back(read_back.top)
            state += [
                tuple(part + other for part, other in zip(layer, other_layer))
                for layer, other_layer in zip(read_ahead.state, read_back.state)
            ]
        return x, state


class _Orders:
    """Reorders positions so that padding comes first and the tokens follow forwards or backwards."""

    def __init__(self, x: Tensor, padding: Optional[Tensor]):
        self.leading_padding = None
        if padding is None:
            return
        positions = torch.arange(x.size(1), device=x.device).expand_as(padding)
        self._ahead = positions.masked_fill(padding, -1).argsort(dim=1, stable=True)
        self._back = (x.size(1) - positions).masked_fill(padding, -1).argsort(dim=1, stable=True)
        self._unahead, self._unback = self._ahead.argsort(dim=1), self._back.argsort(dim=1)
        self.leading_padding = padding.gather(1, self._ahead)

    def ahead(self, x: Tensor) -> Tensor:
        return x if self.leading_padding is None else _take(x, self._ahead)

    def back(self, x: Tensor) -> Tensor:
        return x.flip(1) if self.leading_padding is None else _take(x, self._back)

    def restore_ahead(self, x: Tensor) -> Tensor:
        return x if self.leading_padding is None else _take(x, self._unahead)

    def restore_back(self, x: Tensor) -> Tensor:
        return x.flip(1) if self.leading_padding is None else _take(x, self._unback)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """x (B, S, *) at positions (B, S)."""
    return x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.size(-1)))
