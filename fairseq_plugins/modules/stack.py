"""Stacks of recurrent layers: one direction for decoders and language models, one or two for encoders.

Shapes: B batch rows, T time steps, C input width, of which C' columns are precomputed, D_n width of layer n.
In encoders: B sentences, S positions, N index of the last layer.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, LayerState, RecurrentCell, add_states
from fairseq_plugins.modules.layers import MASKS, BroadcastDropout, ModuleSequence
from fairseq_plugins.ops.cuda_graphs import CUDA_GRAPHS, LoopGraphs
from fairseq_plugins.options import UserError, choices

StackState = List[LayerState]
"""States of the layers, bottom first."""

CudaGraphs = choices(["off", "auto"])


@dataclass
class CudaGraphFlags(FairseqDataclass):
    """Flag of models with recurrent layers."""

    cuda_graphs: CudaGraphs = field(
        default="off",
        metadata={
            "help": "off: every step of a recurrent loop is launched; auto: on a GPU, training replays the loops as "
            "CUDA graphs where shapes recur and results are equal; no GPU has run this yet (default: off)"
        },
    )

    def graphs(self) -> Optional[LoopGraphs]:
        """The graphs of this process, or None."""
        return CUDA_GRAPHS if self.cuda_graphs == "auto" else None


OUTPUT_SKIPS = ("none", "sum")
"""Output of a stack: its last layer's output, or the sum over all layers."""


@dataclass
class StackOutput:
    """Output of a stack for a sequence (B, T, *), or for one step (B, *).

    Attributes:
        layers: output of each layer after dropout, (B, T, D_n). The last is the output of the stack.
        top: output of the stack before dropout, (B, T, D_N).
        state: state after the last time step: of each layer, or of a stack with attention.
        attention: weights of the source positions, (B, T, S), of a stack with attention; else None.
    """

    layers: List[Tensor]
    top: Tensor
    state: Any
    attention: Optional[Tensor] = None


def run_layers(
    layers: Iterable[Callable[[Tensor, LayerState], Tuple[Tensor, LayerState]]],
    dropouts: Iterable[Callable[[Tensor], Tensor]],
    x: Tensor,
    state: StackState,
    *,
    skip: str = "none",
) -> StackOutput:
    """Run layers in sequence, with dropout on the output of each.

    Args:
        layers: bottom first. Each maps input and state to output and new state.
        dropouts: dropout of each layer's output.
        x: input of the first layer.
        state: state of each layer.
        skip: a value of :data:`OUTPUT_SKIPS`. A sum adds outputs before dropout and has the dropout of the last layer.
    """
    outputs: List[Tensor] = []
    new_state: StackState = []
    top = total = x
    for n, (layer, dropout, layer_state) in enumerate(zip(layers, dropouts, state), start=1):
        top, layer_state = layer(x, layer_state)
        if skip == "sum":
            total = top if n == 1 else total + top
            top = total if n == len(state) else top
        x = dropout(top)
        outputs.append(x)
        new_state.append(layer_state)
    return StackOutput(layers=outputs, top=top, state=new_state)


class RecurrentStack(nn.Module):
    """Recurrent layers with dropout after each.

    Args:
        input_size: width C of the input.
        hidden_sizes: width D_n of each layer.
        cell: a value of ``--rnn-cell``.
        cell_options: an instance of the cell's ``Options``, or None for their defaults.
        hidden_dropout: dropout rate between layers.
        output_dropout: dropout rate on the last layer.
        masks: a key of :data:`~fairseq_plugins.modules.layers.MASKS`, for both.
        skip: a value of :data:`OUTPUT_SKIPS`.
        graphs: of the layers' loops, or None.

    Raises:
        UserError: on an unknown cell, no layer, a width below one, a rate outside [0, 1), options that do not fit, or
            a sum over a single layer or over layers of several widths.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: str = "lstm",
        cell_options: Optional[FairseqDataclass] = None,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        masks: str = "locked",
        skip: str = "none",
        graphs: Optional[LoopGraphs] = None,
    ):
        super().__init__()
        assert skip in OUTPUT_SKIPS
        self.skip = skip
        self.graphs = graphs
        cell_class = RECURRENT_CELLS.find(cell)
        if not hidden_sizes or min(hidden_sizes) < 1:
            raise UserError(f"--hidden-sizes {list(hidden_sizes)}: every layer needs a width of at least 1")
        if skip == "sum" and (len(hidden_sizes) < 2 or len(set(hidden_sizes)) > 1):
            raise UserError(
                "--output-skip sum needs two or more layers of equal width: change --hidden-sizes "
                f'"{" ".join(map(str, hidden_sizes))}", or give --output-skip none'
            )
        self.layers: ModuleSequence[RecurrentCell] = ModuleSequence(
            cell_class.build_layers(input_size, hidden_sizes, options=cell_options or cell_class.Options())
        )
        self.dropouts: ModuleSequence[BroadcastDropout] = ModuleSequence(
            BroadcastDropout(rate, flag=flag, shared_dims=MASKS[masks])
            for rate, flag in [
                *[(hidden_dropout, "--dropout-hidden")] * (len(hidden_sizes) - 1),
                (output_dropout, "--dropout-output"),
            ]
        )

    def initial_state(self, x: Tensor) -> StackState:
        """The zero state for the rows of ``x``, (B, *)."""
        return [layer.initial_state(x) for layer in self.layers]

    def forward(
        self,
        x: Tensor,
        state: Optional[StackState] = None,
        *,
        tokens: Optional[Tensor] = None,
        leading_padding: Optional[Tensor] = None,
    ) -> StackOutput:
        """Run all layers over x (B, T, C), from ``state`` or from zeros.

        Cells may read ``tokens`` and ``leading_padding``, both (B, T); see :class:`CellContext`.
        """
        context = CellContext(stack_input=x, tokens=tokens, leading_padding=leading_padding, graphs=self.graphs)
        layers = [partial(layer, context=context) for layer in self.layers]
        return run_layers(layers, self.dropouts, x, self.initial_state(x) if state is None else state, skip=self.skip)

    def draw_masks(self, x: Tensor) -> List[Optional[Tensor]]:
        """New factors between the layers for the rows and steps of x (B, T, *), (B, T or 1, D_n) or None, n < N."""
        below = list(zip(self.dropouts, self.layers))[:-1]
        return [dropout.mask(x, (x.size(0), x.size(1), layer.hidden_size)) for dropout, layer in below]

    def steps(self, x: Tensor, *, tokens: Optional[Tensor] = None) -> Callable[[int, Tensor, StackState], StackOutput]:
        """The steps of a sequence whose last input columns arrive with each step.

        ``step(t, late, state)`` is step t, given the last columns, (B, C - C'). The last layer's output has no dropout.

        Args:
            x: precomputed columns of the input, (B, T, C').
            tokens: (B, T) or None. Cells may read them.
        """
        assert self.skip == "none"
        context = CellContext(stack_input=x, tokens=tokens)
        inputs = [x, *[x[..., :0]] * (len(self.layers) - 1)]  # upper layers have no precomputed columns
        steps = [layer.steps(columns, context) for layer, columns in zip(self.layers, inputs)]
        masks = [None if mask is None else mask.expand(-1, x.size(1), -1).unbind(1) for mask in self.draw_masks(x)]

        def step(t: int, late: Tensor, state: StackState) -> StackOutput:
            layers = [lambda x, layer_state, step=step: step(t, layer_state, x, late) for step in steps]
            dropouts = [lambda x, mask=mask: x if mask is None else x * mask[t] for mask in [*masks, None]]
            return run_layers(layers, dropouts, late, state)

        return step


MERGES = ("top", "layer")
"""Where two directions are summed: once at the top, or after every layer, as input of the next."""


class EncoderStack(nn.Module):
    """An encoder: one or two recurrent stacks, the second of which reads the sentences backwards.

    Annotations are sums of the outputs of both directions. The state for the decoder is the sum of both final states,
    layer by layer. Padding before or after a sentence does not change the results.

    Args:
        stacks: the one that reads the sentences forwards and, if there are two directions, the other.
        merge: a value of :data:`MERGES`.

    Shape:
        x: (B, S, C); padding: (B, S), True at positions without a token, or None; tokens: (B, S) or None;
        output: annotations (B, S, D_N), zero at padding, and the state of each layer.
    """

    def __init__(self, stacks: Iterable[RecurrentStack], *, merge: str):
        super().__init__()
        self.stacks: ModuleSequence[RecurrentStack] = ModuleSequence(stacks)
        self.merge = merge

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
    """One order of reading, with padding moved to the front.

    Attributes:
        reorder, restore: map positions, (B, S, *), to this order and back.
        context: context of the cells, in this order.
    """

    reorder: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]
    context: CellContext


def _read_layer(
    x: Tensor, state: LayerState, *, layers: Sequence[RecurrentCell], directions: Sequence[_Direction]
) -> Tuple[Tensor, LayerState]:
    """Output and final state of one layer, summed over the directions."""
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
    """Forwards, and backwards if there are two directions."""
    if padding is None:
        orders = [(_identity, _identity), (_flip, _flip)]
    else:
        # padding sorts first, then the tokens in the order of the direction
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


def _identity(x: Tensor) -> Tensor:
    return x


def _flip(x: Tensor) -> Tensor:
    return x.flip(1)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """Select positions (B, S) of x (B, S, *)."""
    num_rows, num_positions = positions.shape
    first = num_positions * torch.arange(num_rows, device=x.device).unsqueeze(1)  # place of each row's first position
    return x.flatten(0, 1).index_select(0, (first + positions).flatten()).view_as(x)  # four times as fast as gather
