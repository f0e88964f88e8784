"""Recurrent encoder of one or two directions.

Shapes: B sentences, S positions, C input width, D_n width of layer n, N index of the last layer.
"""

from dataclasses import dataclass
from functools import partial
from typing import Callable, List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_plugins.modules.module_sequence import ModuleSequence
from fairseq_plugins.modules.recurrent_cell import CellContext, LayerState, RecurrentCell
from fairseq_plugins.modules.recurrent_stack import RecurrentStack, StackState, run_layers
from fairseq_plugins.modules.recurrent_state import add_states
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
        x: (B, S, C); padding: (B, S), True where no token is, or None; tokens: (B, S) or None;
        output: annotations (B, S, D_N), zero at padding, and the state, one entry a layer.

    Raises:
        ValueError: as :class:`RecurrentStack`.
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
        self.merge = merge
        if directions == "both":
            self.save_setting("merge_name", flag="--encoder-merge", value=merge)
        self.stacks: ModuleSequence[RecurrentStack] = ModuleSequence(
            RecurrentStack(
                input_size,
                hidden_sizes,
                cell=cell,
                cell_options=cell_options,
                hidden_dropout=hidden_dropout,
                masks="standard",
            )
            for _ in range(2 if directions == "both" else 1)
        )

    def forward(
        self, x: Tensor, padding: Optional[Tensor] = None, *, tokens: Optional[Tensor] = None
    ) -> Tuple[Tensor, StackState]:
        directions = _directions(x, padding, tokens, num_directions=len(self.stacks))
        if self.merge == "top":
            runs = [
                stack(
                    direction.context.stack_input,
                    tokens=direction.context.tokens,
                    leading_padding=direction.context.leading_padding,
                )
                for stack, direction in zip(self.stacks, directions)
            ]
            tops = [direction.restore(run.top) for run, direction in zip(runs, directions)]
            return add_states(*tops), add_states(*(run.state for run in runs))
        layers = [
            partial(_read_layer, layers=layers, directions=directions)
            for layers in zip(*(stack.layers for stack in self.stacks))
        ]
        first = self.stacks[0]
        outputs = run_layers(layers, first.dropouts, x, first.initial_state(x))
        return outputs.top, outputs.state


@dataclass(frozen=True)
class _Direction:
    """One order of reading, with padding first.

    Attributes:
        reorder, restore: map positions, (B, S, *), to this order and back.
        context: of the cells, in this order.
    """

    reorder: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]
    context: CellContext


def _read_layer(
    x: Tensor, state: LayerState, *, layers: Sequence[RecurrentCell], directions: Sequence[_Direction]
) -> Tuple[Tensor, LayerState]:
    """Sums over the directions of one layer's output and final state."""
    outputs: List[Tensor] = []
    states: List[LayerState] = []
    for layer, direction in zip(layers, directions):
        output, new_state = layer(direction.reorder(x), state, direction.context)
        outputs.append(direction.restore(output))
        states.append(new_state)
    return add_states(*outputs), add_states(*states)


def _directions(
    x: Tensor, padding: Optional[Tensor], tokens: Optional[Tensor], *, num_directions: int
) -> List[_Direction]:
    """Forwards, and where there are two backwards."""
    if padding is None:
        orders = [(_keep, _keep), (_flip, _flip)]
    else:
        positions = torch.arange(x.size(1), device=x.device).expand_as(padding)
        ahead = positions.masked_fill(padding, -1).argsort(dim=1, stable=True)
        back = (x.size(1) - positions).masked_fill(padding, -1).argsort(dim=1, stable=True)
        orders = [
            (partial(_take, positions=order), partial(_take, positions=order.argsort(dim=1))) for order in (ahead, back)
        ]
    return [
        _Direction(
            reorder,
            restore,
            CellContext(
                stack_input=reorder(x),
                leading_padding=None if padding is None else reorder(padding),
                tokens=None if tokens is None else reorder(tokens),
            ),
        )
        for reorder, restore in orders[:num_directions]
    ]


def _keep(x: Tensor) -> Tensor:
    return x


def _flip(x: Tensor) -> Tensor:
    return x.flip(1)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """x (B, S, *) at positions (B, S)."""
    index = positions.view(*positions.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand_as(x))
