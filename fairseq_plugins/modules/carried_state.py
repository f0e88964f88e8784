"""Recurrent state that a model keeps from one window of a text stream to the next."""

from itertools import count
from typing import Any, Dict, Optional, Protocol, runtime_checkable

from fairseq_plugins.modules.recurrent_state import detach_state

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

        The host passes over a window for which memory runs out. The state before that window then goes on.

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
