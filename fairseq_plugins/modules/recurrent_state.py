"""Recurrent state: tensors, a batch row (B, ...) first, in nested dictionaries and sequences.

Whatever keeps state treats it through these functions: stacks of layers, beam search, the hand-over from an encoder,
state that is carried along a stream, and checkpoints.
"""

from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, TypeVar, Union, overload

import torch
from torch import Tensor

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
    # the host's broadcast of a checkpoint garbles tensors that are not contiguous
    new = (part.reshape(len(part), *x.shape[1:]).to(x.dtype).contiguous() for part, x in zip(parts, old))
    return with_tensors(like, new)
