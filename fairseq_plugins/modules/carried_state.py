"""Recurrent state that a model keeps from one window of a text stream to the next."""

from typing import Dict, Optional

import torch
from torch import Tensor

from fairseq_plugins.modules.recurrent_stack import StackState


class CarriedState:
    """Keeps the state of the training streams apart from that of an evaluation.

    An evaluation in the middle of an epoch therefore starts from zero and leaves the training
    streams where they were. States are detached: no gradient crosses a window.
    """

    def __init__(self):
        self._states: Dict[bool, StackState] = {}

    def start(self, *, training: bool) -> None:
        """Forget the state, as the first window of a stream does."""
        self._states.pop(training, None)

    def get(self, *, training: bool) -> Optional[StackState]:
        """State after the previous window, or None at the start of a stream."""
        return self._states.get(training)

    def set(self, state: StackState, *, training: bool) -> None:
        """Keep the state after a window."""
        self._states[training] = [tuple(part.detach() for part in layer) for layer in state]


def pack_state(state: StackState) -> Tensor:
    """Concatenate a state's tensors into one of shape (B, sum of widths)."""
    return torch.cat([part for layer in state for part in layer], dim=1)


def unpack_state(packed: Tensor, like: StackState) -> StackState:
    """Inverse of :func:`pack_state` for a state of the same widths as ``like``."""
    parts = iter(packed.split([part.size(1) for layer in like for part in layer], dim=1))
    # the host's broadcast of a checkpoint garbles tensors that are not contiguous
    return [tuple(next(parts).contiguous() for _ in layer) for layer in like]
