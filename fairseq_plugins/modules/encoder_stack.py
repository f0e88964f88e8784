"""Recurrent encoder of one or two directions.

Shapes: B sentences, S positions, C input width, D_n width of layer n, N index of the last layer.
"""

from functools import partial
from typing import Callable, List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.recurrent_cell import LayerState
from fairseq_plugins.modules.recurrent_stack import RecurrentStack, StackState
from fairseq_plugins.modules.saved_setting import SavesSettings

DIRECTIONS = ("both", "forward")
"""How sentences are read: forwards and backwards, or forwards only."""

MERGES = ("top", "layer")
"""Where two directions are summed: once at the top, or after every layer, the sum feeding the next."""


class EncoderStack(SavesSettings):
    """One or two recurrent stacks, the second of which reads the sentences backwards.

    Annotations are the sums of both directions' outputs, and the state that is handed over to a decoder is the sum
    of both final states, layer by layer. Padding may stand anywhere before or after a sentence and changes nothing.

    Args:
        input_size: C.
        hidden_sizes: D_1 .. D_N.
        cell, cell_options: as :class:`RecurrentStack`.
        directions: a value of :data:`DIRECTIONS`.
        merge: a value of :data:`MERGES`.
        hidden_dropout: standard dropout rate between layers.

    Shape:
        x: (B, S, C); padding: (B, S), True where no token is, or None;
        output: annotations (B, S, D_N), zero at padding, and the state, one entry a layer.

    Raises:
        ValueError: on unknown directions or an unknown merge, and as :class:`RecurrentStack`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: str,
        cell_options: Optional[FairseqDataclass] = None,
        directions: str = "both",
        merge: str,
        hidden_dropout: float,
    ):
        super().__init__()
        if directions not in DIRECTIONS:
            raise ValueError(f"--encoder-directions {directions}: choose one of {', '.join(DIRECTIONS)}")
        if merge not in MERGES:
            raise ValueError(f"--encoder-merge {merge}: choose one of {', '.join(MERGES)}")
        self.merge = merge
        if directions == "both":
            self.save_setting("merge_name", flag="--encoder-merge", value=merge)
        self.stacks = nn.ModuleList(
            RecurrentStack(
                input_size,
                hidden_sizes,
                cell=cell,
                cell_options=cell_options,
                hidden_dropout=hidden_dropout,
                shared_mask_dims=(),
            )
            for _ in range(2 if directions == "both" else 1)
        )
        self.between = nn.Dropout(hidden_dropout)

    def forward(self, x: Tensor, padding: Optional[Tensor] = None) -> Tuple[Tensor, StackState]:
        orders = _Orders(x, padding)
        if self.merge == "top":
            return self._read_stacks(x, orders)
        state, stack_input = [], x
        for n in range(len(self.stacks[0].layers)):
            x = self.between(x) if n > 0 else x
            x, layer_state = self._read_layers(n, x, stack_input, orders)
            state.append(layer_state)
        return x, state

    def _read_stacks(self, x: Tensor, orders: "_Orders") -> Tuple[Tensor, StackState]:
        outputs, states = [], []
        for stack, (reorder, restore) in zip(self.stacks, orders.directions):
            read = stack(reorder(x), leading_padding=orders.leading_padding)
            outputs.append(restore(read.top))
            states.append(read.state)
        return _total(outputs), [_total_state(layer) for layer in zip(*states)]

    def _read_layers(self, n: int, x: Tensor, stack_input: Tensor, orders: "_Orders") -> Tuple[Tensor, LayerState]:
        outputs, states = [], []
        for stack, (reorder, restore) in zip(self.stacks, orders.directions):
            output, state = stack.layers[n](
                reorder(x), stack_input=reorder(stack_input), leading_padding=orders.leading_padding
            )
            outputs.append(restore(output))
            states.append(state)
        return _total(outputs), _total_state(states)


def _total(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])


def _total_state(states: Sequence[LayerState]) -> LayerState:
    return tuple(_total(parts) for parts in zip(*states))


class _Orders:
    """Reorders positions so that padding comes first and the tokens follow forwards or backwards.

    Attributes:
        leading_padding: where padding is then, (B, S), or None.
        directions: for each direction the function that reorders (B, S, *) and its inverse.
    """

    def __init__(self, x: Tensor, padding: Optional[Tensor]):
        self.leading_padding = None
        self.directions: List[Tuple[Callable, Callable]] = [(_keep, _keep), (_flip, _flip)]
        if padding is None:
            return
        positions = torch.arange(x.size(1), device=x.device).expand_as(padding)
        ahead = positions.masked_fill(padding, -1).argsort(dim=1, stable=True)
        back = (x.size(1) - positions).masked_fill(padding, -1).argsort(dim=1, stable=True)
        self.leading_padding = padding.gather(1, ahead)
        self.directions = [
            (partial(_take, positions=order), partial(_take, positions=order.argsort(dim=1))) for order in (ahead, back)
        ]


def _keep(x: Tensor) -> Tensor:
    return x


def _flip(x: Tensor) -> Tensor:
    return x.flip(1)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """x (B, S, *) at positions (B, S)."""
    return x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.size(-1)))
