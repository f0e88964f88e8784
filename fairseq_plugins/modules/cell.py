"""The contract between recurrent layers and the stacks that they make up, and the registry of ``--rnn-cell``.

Shapes: B batch rows, T time steps, C width of a layer's input, of which C' columns are known in advance, C_1 and C_1'
the same of the stack's input, D width of the layer.
"""

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    overload,
    runtime_checkable,
)

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.components import Component, Registry
from fairseq_plugins.modules.layers import StartsByLayer

# Recurrent state: tensors, a batch row (B, ...) first, in nested dictionaries and sequences.
#
# Whatever keeps state treats it through these functions: stacks of layers, beam search, the hand-over from an encoder,
# state that is carried along a stream, and checkpoints.


State = Union[Tensor, Sequence["State"], Mapping[str, "State"]]
"""A tensor, or states by place or by name; without any tensor it is empty."""


S = TypeVar("S", bound=State)


@overload
def map_state(function: Callable[..., Tensor], state: Tensor, *others: Tensor) -> Tensor: ...
@overload
def map_state(function: Callable[..., Tensor], state: Mapping[str, S], *others: Mapping[str, S]) -> Dict[str, S]: ...
@overload
def map_state(function: Callable[..., Tensor], state: Sequence[S], *others: Sequence[S]) -> List[S]: ...
@overload
def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State: ...
def map_state(function: Callable[..., Tensor], state: State, *others: Any) -> State:
    """The state whose tensors are ``function`` of the tensors at the same place of all given states."""
    if isinstance(state, Tensor):
        return function(state, *others)
    if isinstance(state, Mapping):
        return {name: map_state(function, part, *(other[name] for other in others)) for name, part in state.items()}
    return [map_state(function, *parts) for parts in zip(state, *others)]


def named_tensors(state: State) -> Dict[str, Tensor]:
    """The tensors in their order, named by the path that leads to each, such as ``layers.0.h``."""
    if isinstance(state, Tensor):
        return {"": state}
    parts = state.items() if isinstance(state, Mapping) else enumerate(state)
    return {
        f"{name}.{path}" if path else str(name): tensor
        for name, part in parts
        for path, tensor in named_tensors(part).items()
    }


def state_tensors(state: State) -> Iterator[Tensor]:
    """The tensors in their order."""
    return iter(named_tensors(state).values())


@overload
def with_tensors(like: Mapping[str, S], others: Iterable[Tensor]) -> Dict[str, S]: ...
@overload
def with_tensors(like: State, others: Iterable[Tensor]) -> State: ...
def with_tensors(like: State, others: Iterable[Tensor]) -> State:
    """A state of the structure of ``like`` that holds ``others``, in their order."""
    others = iter(others)
    return map_state(lambda _: next(others), like)


@overload
def select_rows(state: Tensor, rows: Union[Tensor, slice]) -> Tensor: ...
@overload
def select_rows(state: Mapping[str, S], rows: Union[Tensor, slice]) -> Dict[str, S]: ...
@overload
def select_rows(state: Sequence[S], rows: Union[Tensor, slice]) -> List[S]: ...
@overload
def select_rows(state: State, rows: Union[Tensor, slice]) -> State: ...
def select_rows(state: State, rows: Union[Tensor, slice]) -> State:
    """The given rows of every tensor; ``rows`` is (n) int64 or a slice."""
    if isinstance(rows, slice):
        return map_state(lambda x: x[rows], state)
    return map_state(lambda x: x.index_select(0, rows), state)


@overload
def detach_state(state: Mapping[str, S]) -> Dict[str, S]: ...
@overload
def detach_state(state: State) -> State: ...
def detach_state(state: State) -> State:
    """The state without its gradients."""
    return map_state(Tensor.detach, state)


@overload
def add_states(state: Tensor, *others: Tensor) -> Tensor: ...
@overload
def add_states(state: Mapping[str, S], *others: Mapping[str, S]) -> Dict[str, S]: ...
@overload
def add_states(state: Sequence[S], *others: Sequence[S]) -> List[S]: ...
def add_states(state: State, *others: Any) -> State:
    """The sum of states of one structure."""
    return map_state(lambda *parts: sum(parts[1:], parts[0]), state, *others)


def pack_state(state: State) -> Tensor:
    """All tensors side by side, (B, sum of their sizes)."""
    return torch.cat([x.unsqueeze(-1).flatten(1) for x in state_tensors(state)], dim=1)


@overload
def unpack_state(packed: Tensor, like: Mapping[str, S]) -> Dict[str, S]: ...
@overload
def unpack_state(packed: Tensor, like: State) -> State: ...
def unpack_state(packed: Tensor, like: State) -> State:
    """Inverse of :func:`pack_state` for a state that has the structure, sizes and types of ``like``.

    The number of rows is that of ``packed``.
    """
    old = list(state_tensors(like))
    parts = packed.split([x.shape[1:].numel() for x in old], dim=1)
    # fairseq's broadcast of a checkpoint garbles tensors that are not contiguous
    new = (part.reshape(len(part), *x.shape[1:]).to(x.dtype).contiguous() for part, x in zip(parts, old))
    return with_tensors(like, new)


LayerState = Dict[str, Tensor]
"""State of one layer by name, each (B, *), such as h and c of an LSTM."""


@dataclass(frozen=True)
class CellContext:
    """What a layer may read beside its own input.

    Attributes:
        stack_input: the columns known in advance of what the stack's first layer reads, (B, T, C_1').
        leading_padding: True at padding in front of a row, (B, T), or None where there is none.
        tokens: the words that the stack reads, (B, T), or None where nobody tells.
    """

    stack_input: Tensor
    leading_padding: Optional[Tensor] = None
    tokens: Optional[Tensor] = None


class Late(NamedTuple):
    """What only a step knows of the inputs.

    Attributes:
        input: the last columns of the layer's input, (B, C - C'), or None where all were known.
        stack_input: those of the stack's, (B, C_1 - C_1'), or None.
    """

    input: Optional[Tensor] = None
    stack_input: Optional[Tensor] = None


class RecurrentCell(StartsByLayer, Component, nn.Module):
    """One recurrent layer.

    A subclass registers itself with ``RECURRENT_CELLS.register``, names its flags in the dataclass ``Options``, sets
    ``hidden_size`` D and implements the constructor, :meth:`initial_state`, :meth:`prepare` and :meth:`step`; it then
    is a value of ``--rnn-cell`` in every recurrent model. The runs over a sequence and step by step follow from these;
    a subclass may override :meth:`forward` by something faster. One with recurrent matrices, or several stacked in one
    parameter, overrides :meth:`start_by_layer`.

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

    def start_by_layer(self) -> None:
        """Draw what ``--init by-layer`` starts in another way than input matrices and biases; here nothing."""

    @property
    def feature_groups(self) -> Dict[str, slice]:
        """Parts of the output (B, T, D) that are computed apart, by name; none where it is of one piece."""
        return {}

    def read_dictionary(self, dictionary: Dictionary) -> None:
        """Learn what the cell wants to know of the words; called once, where a model is built for them."""

    def initial_state(self, x: Tensor) -> LayerState:
        """The zero state for the rows of ``x``, (B, *)."""
        raise NotImplementedError

    def prepare(self, x: Tensor, context: CellContext) -> Any:
        """Compute or draw what all steps read: masks of a window, dropped matrices, products with the input.

        Args:
            x: the columns of the input that are known in advance, (B, T, C'), 0 <= C' <= C.
            context: what else can be read.
        """
        raise NotImplementedError

    def step(self, prepared: Any, t: int, late: Late, state: LayerState) -> Tuple[Tensor, LayerState]:
        """Output (B, D) of step t and the state after it.

        Args:
            prepared: what :meth:`prepare` returned.
            t: number of the step, from 0.
            late: the columns of the inputs that are known only now.
            state: that before the step.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        """Run over all steps of x (B, T, C).

        Returns:
            output (B, T, D), zero at leading padding, and the state after the last step. Padding leaves a state of
            zeros alone, which is all that an encoder needs.
        """
        prepared = self.prepare(x, context)
        paddings = None if context.leading_padding is None else context.leading_padding.unbind(1)
        outputs = []
        for t in range(x.size(1)):
            output, new_state = self.step(prepared, t, Late(), state)
            if paddings is not None:
                output = output.masked_fill(paddings[t].unsqueeze(-1), 0)
                new_state = map_state(partial(_keep_at, paddings[t]), new_state, state)
            outputs.append(output)
            state = new_state
        return torch.stack(outputs, dim=1), state


def provide_dictionary(module: nn.Module, dictionary: Dictionary) -> None:
    """Let the recurrent layers in a module read the dictionary of its words.

    Raises:
        ValueError: if the dictionary lacks what a layer needs.
    """
    for cell in module.modules():
        if isinstance(cell, RecurrentCell):
            cell.read_dictionary(dictionary)


def _keep_at(padding: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of ``old`` where padding (B) is, of ``new``, (B, *), elsewhere."""
    return torch.where(padding.view(-1, *[1] * (new.dim() - 1)), old, new)


RECURRENT_CELLS: Registry[RecurrentCell] = Registry("--rnn-cell", help="recurrent layer")
"""Values of ``--rnn-cell``."""


# Recurrent state that a model keeps from one window of a text stream to the next.


DecoderState = Dict[str, Any]
"""State of a decoder: the states of its parts by name, a row (B, ...) for each row of a stream."""


_STREAM_NUMBERS = count(1)


def new_stream(kind: str) -> str:
    """A name that no stream has had; ``kind`` says what it is."""
    return f"{kind} {next(_STREAM_NUMBERS)}"


class CarriedState:
    """States of streams by name, and by the position in a stream of the token that is read next.

    Streams do not know of each other: one is trained on while another is scored. States are detached, so that no
    gradient crosses a window. The states before the last windows stay, so that a window can be repeated.
    """

    def __init__(self):
        self._streams: Dict[str, Dict[int, Optional[DecoderState]]] = {}
        self.num_repeatable = 1
        """Windows of a stream, counted from the last, that can be read again."""

    def get(self, stream: str, position: int) -> Optional[DecoderState]:
        """State before the token at ``position``; None, which stands for zeros, at the start of a stream.

        fairseq passes over a window for which memory runs out. The state before that window then goes on.

        Raises:
            ValueError: if no window of the stream has ended there or before.
        """
        if position == 0:
            self._streams[stream] = {0: None}
        states = self._streams.get(stream, {})
        earlier = [p for p in states if p <= position]
        if not earlier:
            raise ValueError(
                f"stream '{stream}' cannot go on at token {position}: its windows come in order, from token 0"
            )
        return states[max(earlier)]

    def set(self, stream: str, position: int, state: DecoderState) -> None:
        """Keep the state before the token at ``position``, after the window that ended there."""
        states = self._streams.setdefault(stream, {})
        for later in [p for p in states if p >= position]:
            del states[later]
        states[position] = detach_state(state)
        for earlier in sorted(states)[: -1 - self.num_repeatable]:
            del states[earlier]

    def forget(self, stream: str) -> None:
        """Drop the states of a stream that is not read on."""
        self._streams.pop(stream, None)


@runtime_checkable
class CarriesState(Protocol):
    """A decoder that goes on in a stream of text from the state after the window before.

    Attributes:
        carried_state: its states.
    """

    carried_state: CarriedState

    def initial_state(self, num_rows: int) -> DecoderState:
        """The state of ``num_rows`` rows at the start of a stream."""
