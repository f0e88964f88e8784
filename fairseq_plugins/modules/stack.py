"""A stack of recurrent layers that returns every layer's output and its state.

Shapes: B batch rows, T time steps, C input width, of which C' columns are known in advance, D_n width of layer n.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, Late, LayerState, RecurrentCell, add_states
from fairseq_plugins.modules.layers import MASKS, BroadcastDropout, ModuleSequence, SavesSettings

StackState = List[LayerState]
"""States of the layers, bottom first."""

OUTPUT_SKIPS = ("none", "sum")
"""What a stack outputs: what its last layer does, or the sum of the outputs of all layers."""


@dataclass
class StackOutput:
    """What layers return, for a sequence (B, T, *) or for one step (B, *).

    Attributes:
        layers: output of each layer after its dropout, (B, T, D_n); last that of the stack.
        top: output of the stack before its dropout, (B, T, D_N).
        state: state after the last time step, one entry a layer.
    """

    layers: List[Tensor]
    top: Tensor
    state: StackState


def run_layers(
    layers: Iterable[Callable[[Tensor, LayerState], Tuple[Tensor, LayerState]]],
    dropouts: Iterable[Callable[[Tensor], Tensor]],
    x: Tensor,
    state: StackState,
    *,
    skip: str = "none",
) -> StackOutput:
    """Run one layer after the other, each with dropout on its output.

    Args:
        layers: bottom first; input and state of a layer to its output and new state.
        dropouts: of each layer's output, the last of the stack's.
        x: input of the first layer.
        state: of each layer.
        skip: a value of :data:`OUTPUT_SKIPS`. The outputs that are summed are those without dropout; the sum has that
            of the last layer.
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

    Raises:
        ValueError: on an unknown cell, no layer, a width below one, a rate outside [0, 1) or options that do not fit,
            and if outputs of one layer or of several widths are to be summed.
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
    ):
        super().__init__()
        assert skip in OUTPUT_SKIPS
        self.skip = skip
        cell_class = RECURRENT_CELLS.find(cell)
        if not hidden_sizes or min(hidden_sizes) < 1:
            raise ValueError(f"--hidden-sizes {list(hidden_sizes)}: every layer needs a width of at least 1")
        if skip == "sum" and (len(hidden_sizes) < 2 or len(set(hidden_sizes)) > 1):
            raise ValueError(
                f'--output-skip sum adds the outputs of several layers of one width: --hidden-sizes "'
                f'{" ".join(map(str, hidden_sizes))}" has not those, give others or --output-skip none'
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

        ``tokens`` and ``leading_padding``, both (B, T), are for cells to read; see :class:`CellContext`.
        """
        context = CellContext(stack_input=x, tokens=tokens, leading_padding=leading_padding)
        layers = [partial(layer, context=context) for layer in self.layers]
        return run_layers(layers, self.dropouts, x, self.initial_state(x) if state is None else state, skip=self.skip)

    def steps(self, x: Tensor, *, tokens: Optional[Tensor] = None) -> "StackSteps":
        """The steps over a sequence whose last input columns are known at their step only.

        x (B, T, C') are the columns that are known in advance; ``tokens`` (B, T) are for cells to read.
        """
        return StackSteps(self, x, tokens=tokens)


class StackSteps:
    """The steps of a stack over one sequence; what does not depend on the step is computed at the start.

    Args:
        stack: the layers.
        x: the columns of the input that are known in advance, (B, T, C').
        tokens: (B, T) or None.
    """

    def __init__(self, stack: RecurrentStack, x: Tensor, *, tokens: Optional[Tensor] = None):
        context = CellContext(stack_input=x, tokens=tokens)
        nothing = x[..., :0]
        inputs = [x, *[nothing] * (len(stack.layers) - 1)]
        self.skip = stack.skip
        self.layers = [(layer, layer.prepare(known, context)) for layer, known in zip(stack.layers, inputs)]
        self.masks = [
            _mask_of_steps(dropout, x, layer.hidden_size) for dropout, layer in zip(stack.dropouts, stack.layers)
        ]

    def __call__(self, t: int, late: Tensor, state: StackState) -> StackOutput:
        """Step t, with the last columns of the input, (B, C - C')."""

        def step(layer: RecurrentCell, prepared: Any, x: Tensor, layer_state: LayerState) -> Tuple[Tensor, LayerState]:
            return layer.step(prepared, t, Late(x, late), layer_state)

        layers = [partial(step, *layer) for layer in self.layers]
        return run_layers(layers, [partial(mask, t) for mask in self.masks], late, state, skip=self.skip)


def _mask_of_steps(dropout: BroadcastDropout, x: Tensor, width: int) -> Callable[[int, Tensor], Tensor]:
    """Dropout of an output (B, width) at step t, with a mask drawn for all steps."""
    mask = dropout.mask(x, (x.size(0), x.size(1), width))
    if mask is None:
        return _keep
    masks = mask.expand(-1, x.size(1), -1).unbind(1)
    return lambda t, output: output * masks[t]


def _keep(t: int, output: Tensor) -> Tensor:
    return output


# Recurrent encoder of one or two directions.
#
# Shapes: B sentences, S positions, C input width, D_n width of layer n, N index of the last layer.


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
        orders = [(_encoder_stack_keep, _encoder_stack_keep), (_flip, _flip)]
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


def _encoder_stack_keep(x: Tensor) -> Tensor:
    return x


def _flip(x: Tensor) -> Tensor:
    return x.flip(1)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """x (B, S, *) at positions (B, S)."""
    index = positions.view(*positions.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand_as(x))
