"""Recurrent layers: their base class, registry and state.

A layer runs over a whole sequence, or step by step if a part of its input depends on the step before, as with input
feeding. Step by step, the first C' columns of the input are precomputed: all their time steps are known at the start.
The other C - C' columns arrive with each step.

Shapes: B batch rows, T time steps, C width of a layer's input, of which C' columns are precomputed, C_1 and C_1' the
same of the stack's input, D width of the layer.
"""

from dataclasses import dataclass
from functools import partial
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    cast,
)

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.ops.cuda_graphs import LoopGraphs
from fairseq_plugins.parts import Part, Registry

LayerState = Dict[str, Tensor]
"""State of one layer by name, each (B, *), such as h and c of an LSTM."""


@dataclass(frozen=True)
class CellContext:
    """Inputs of a layer besides its own.

    Attributes:
        stack_input: the precomputed input of the stack's first layer, (B, T, C_1').
        leading_padding: True at padding in front of a row, (B, T), or None without padding.
        tokens: the words that the stack reads, (B, T), or None if they are unknown.
        graphs: CUDA graphs for the loops over time steps in training, or None.
    """

    stack_input: Tensor
    leading_padding: Optional[Tensor] = None
    tokens: Optional[Tensor] = None
    graphs: Optional[LoopGraphs] = None


Step = Callable[[int, LayerState, Optional[Tensor], Optional[Tensor]], Tuple[Tensor, LayerState]]
"""``step(t, state, x, stack_input)`` gives the output (B, D) of step t, counted from 0, and the state after it.

The columns x (B, C - C') and stack_input (B, C_1 - C_1') arrive with the step. They are None if all were precomputed.
"""


class RecurrentCell(Part, nn.Module):
    """One recurrent layer.

    To add a value of ``--rnn-cell`` to every recurrent model, a subclass registers itself with
    ``RECURRENT_CELLS.register``, declares its flags in the dataclass ``Options``, sets ``hidden_size`` D and implements
    the constructor, :meth:`initial_state` and :meth:`steps`. It may override :meth:`forward` by something faster.

    Args:
        input_size: C.
        hidden_size: D.
        options: an instance of ``Options``.
    """

    hidden_size: int

    @classmethod
    def build_layers(cls, input_size: int, hidden_sizes: Sequence[int], *, options: Any) -> List["RecurrentCell"]:
        """The layers of a stack, bottom first.

        Args:
            input_size: C_1.
            hidden_sizes: width of each layer.
            options: an instance of ``Options``.
        """
        input_sizes = [input_size, *hidden_sizes[:-1]]
        return [cls(size, width, options=options) for size, width in zip(input_sizes, hidden_sizes)]

    @property
    def feature_groups(self) -> Dict[str, slice]:
        """Named parts of the output (B, T, D) that are computed independently; empty if there is one part."""
        return {}

    def read_dictionary(self, dictionary: Dictionary) -> None:
        """Read what the cell needs from the dictionary. Called once, when a model is built."""

    def initial_state(self, x: Tensor) -> LayerState:
        """The zero state for the rows of ``x``, (B, *)."""
        raise NotImplementedError

    def steps(self, x: Tensor, context: CellContext) -> Step:
        """The steps of a sequence. What they share is computed first: dropout masks, matrices, products with the input.

        Args:
            x: the precomputed columns of the input, (B, T, C'), 0 <= C' <= C.
            context: other inputs.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        """Run over all steps of x (B, T, C).

        Returns:
            output (B, T, D), zero at leading padding, and the state after the last step. Padding is only
            guaranteed to keep a state of zeros, with which encoders start.
        """
        step = self.steps(x, context)
        paddings = None if context.leading_padding is None else context.leading_padding.unbind(1)
        outputs = []
        for t in range(x.size(1)):
            output, new_state = step(t, state, None, None)
            if paddings is not None:
                output = output.masked_fill(paddings[t].unsqueeze(-1), 0)
                new_state = map_state(partial(replace_rows, paddings[t]), new_state, state)
            outputs.append(output)
            state = new_state
        return torch.stack(outputs, dim=1), state


def provide_dictionary(module: nn.Module, dictionary: Dictionary) -> None:
    """Give the dictionary to all recurrent layers in a module.

    Raises:
        UserError: if the dictionary lacks what a layer needs.
    """
    for cell in module.modules():
        if isinstance(cell, RecurrentCell):
            cell.read_dictionary(dictionary)


RECURRENT_CELLS: Registry[RecurrentCell] = Registry("--rnn-cell", help="recurrent layer")
"""Values of ``--rnn-cell``."""


# Functions of recurrent state: tensors (B, ...) in nested dictionaries and sequences. Stacks, beam search, the transfer
# from encoder to decoder, streams and checkpoints handle state only by these functions, so that cells are free in its
# structure.

State = Union[Tensor, Sequence["State"], Mapping[str, "State"]]
"""A tensor, or a sequence or mapping of states. A state without any tensor is empty."""


S = TypeVar("S", bound=State)


def map_state(function: Callable[..., Tensor], state: S, *others: Any) -> S:
    """Apply ``function`` to the tensors at the same place of all given states. Sequences become lists."""
    mapped: Any
    if isinstance(state, Tensor):
        mapped = function(state, *others)
    elif isinstance(state, Mapping):
        mapped = {name: map_state(function, part, *(one[name] for one in others)) for name, part in state.items()}
    else:
        mapped = [map_state(function, *parts) for parts in zip(state, *others)]
    return cast(S, mapped)


def replace_rows(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """``new`` (B, *) with the rows of ``old`` where ``rows`` (B) is True."""
    return torch.where(rows.view(-1, *[1] * (new.dim() - 1)), old.to(new), new)


def named_tensors(state: State) -> Dict[str, Tensor]:
    """The tensors in order, by their paths, such as ``layers.0.h``."""
    if isinstance(state, Tensor):
        return {"": state}
    parts = state.items() if isinstance(state, Mapping) else enumerate(state)
    return {
        f"{name}.{path}" if path else str(name): tensor
        for name, part in parts
        for path, tensor in named_tensors(part).items()
    }


def state_tensors(state: State) -> Iterator[Tensor]:
    """The tensors in order."""
    return iter(named_tensors(state).values())


def with_tensors(like: S, others: Iterable[Tensor]) -> S:
    """A state with the structure of ``like`` and the tensors ``others``, in order."""
    others = iter(others)
    return map_state(lambda _: next(others), like)


def select_rows(state: S, rows: Union[Tensor, slice]) -> S:
    """Select batch rows of every tensor. ``rows`` is (n) int64 or a slice."""
    if isinstance(rows, slice):
        return map_state(lambda x: x[rows], state)
    return map_state(lambda x: x.index_select(0, rows), state)


def detach_state(state: S) -> S:
    """Detach every tensor from the graph."""
    return map_state(Tensor.detach, state)


def add_states(state: S, *others: S) -> S:
    """Sum of states of the same structure."""
    return map_state(lambda *parts: sum(parts[1:], parts[0]), state, *others)


def pack_state(state: State) -> Tensor:
    """Concatenate all tensors to (B, sum of their sizes)."""
    return torch.cat([x.unsqueeze(-1).flatten(1) for x in state_tensors(state)], dim=1)


def unpack_state(packed: Tensor, like: S) -> S:
    """Inverse of :func:`pack_state`, for a state with the structure, sizes and dtypes of ``like``.

    ``packed`` determines the number of rows.
    """
    old = list(state_tensors(like))
    parts = packed.split([x.shape[1:].numel() for x in old], dim=1)
    # fairseq garbles tensors that are not contiguous when it broadcasts a checkpoint
    new = (part.reshape(part.size(0), *x.shape[1:]).to(x.dtype).contiguous() for part, x in zip(parts, old))
    return with_tensors(like, new)
