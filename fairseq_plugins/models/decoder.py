"""Decoders that cache a state between the steps of a search, or carry one from window to window of a text stream.

Shapes: B batch rows, T time steps, D_n width of layer n, V vocabulary.
"""

from functools import partial
from itertools import count
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor

from fairseq_plugins.modules.cell import State, detach_state, map_state, replace_rows, select_rows, state_tensors
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.scores import DecoderStates, Scores

IncrementalState = Optional[Dict[str, Dict[str, Any]]]
"""fairseq's store for step-by-step decoding, or None outside of it."""


class CachingDecoder(FairseqIncrementalDecoder):
    """Keeps a state in fairseq's store between the steps of a beam search, a row (B, ...) for each hypothesis."""

    def cached(self, incremental_state: IncrementalState) -> Dict[str, Any]:
        """The state that the previous step kept; empty at the first step."""
        return (incremental_state or {}).get(str(id(self)), {})

    def cache(self, incremental_state: IncrementalState, state: Dict[str, Any]) -> None:
        """Keep a state for the next step."""
        if incremental_state is not None:
            incremental_state[str(id(self))] = state

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Select the rows ``new_order`` of the state, when beam search reorders hypotheses."""
        self.cache(incremental_state, select_rows(self.cached(incremental_state), new_order))


StreamState = Dict[str, Any]
"""State of a :class:`StreamDecoder`: the states of its parts by name, with a batch row for each row of a stream."""


_STREAM_NUMBERS = count(1)


def new_stream(kind: str) -> str:
    """A new name of a stream, which begins with ``kind``."""
    return f"{kind} {next(_STREAM_NUMBERS)}"


class CarriedState:
    """States by stream and by position of the next token in the stream.

    Streams are independent: a model can train on one and score another in between. States are detached, so that no
    gradient crosses a window. States before the last windows are kept, so that a window can be repeated.
    """

    def __init__(self):
        self._streams: Dict[str, Dict[int, Optional[StreamState]]] = {}
        self.num_repeatable = 1
        """Number of last windows of a stream that can be repeated."""

    def get(self, stream: str, position: int) -> Optional[StreamState]:
        """State before the token at ``position``. None, which means the initial state, at the start of a stream.

        fairseq skips a window that does not fit in memory. The next window then starts from the state before the
        skipped one.

        Raises:
            UserError: if no window of the stream has ended at or before the position.
        """
        if position == 0:
            self._streams[stream] = {0: None}
        states = self._streams.get(stream, {})
        earlier = [p for p in states if p <= position]
        if not earlier:
            raise UserError(
                f"stream '{stream}' cannot continue at token {position}: its windows come in order, from token 0"
            )
        return states[max(earlier)]

    def set(self, stream: str, position: int, state: StreamState) -> None:
        """Store the state after the window that ended before the token at ``position``."""
        states = self._streams.setdefault(stream, {})
        for later in [p for p in states if p >= position]:
            del states[later]
        states[position] = detach_state(state)
        for earlier in sorted(states)[: -1 - self.num_repeatable]:
            del states[earlier]

    def forget(self, stream: str) -> None:
        """Drop the states of a stream that has ended."""
        self._streams.pop(stream, None)


class StreamDecoder(CachingDecoder):
    """Predicts the next token of separate sequences, of the windows of a stream, or of the steps of a search.

    It keeps the state from window to window and from step to step. A subclass sets :attr:`output` and implements
    :meth:`initial_layers` and :meth:`read`, or overrides :meth:`initial_state` and :meth:`score`.

    Attributes:
        output: the output layer.
        carried_state: the states of all streams that are read.
        state_dropout: probability that a row of a training window starts from the initial state, as evaluation does,
            and not from the carried one (Melis et al. 2020). Torch's generator, which fairseq seeds at every update,
            draws the rows, so a resumed run draws the same.
    """

    output: OutputLayer
    state_dropout: float = 0.0

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.carried_state = CarriedState()

    def initial_layers(self, like: Tensor) -> State:
        """The initial state of the layers below the output layer, for the rows of ``like``, (B, ...)."""
        raise NotImplementedError

    def read(self, tokens: Tensor, layers: Any, *, incremental: bool) -> Tuple[DecoderStates, State]:
        """Run all layers below the output layer.

        Args:
            tokens: (B, T).
            layers: their state before the first token.
            incremental: whether this is a step of a search.

        Returns:
            the input of the output layer, and the state of the layers after the last token.
        """
        raise NotImplementedError

    def initial_state(self, num_rows: int) -> StreamState:
        """The state of ``num_rows`` rows before any token."""
        rows = next(self.parameters()).new_empty(num_rows, 0)
        return {"layers": self.initial_layers(rows), "gate": self.output.gate.initial_state(rows)}

    def score(
        self, tokens: Tensor, state: StreamState, *, incremental: bool, **loss: Any
    ) -> Tuple[DecoderStates, Scores, StreamState]:
        """Run the layers and the output layer.

        Args:
            tokens: (B, T).
            state: before the first token.
            incremental: whether this is a step of a search.
            loss: targets and how they are scored; see :meth:`OutputLayer.forward`.

        Returns:
            the input of the output layer, its scores, and the state after the last token.
        """
        states, layers = self.read(tokens, state["layers"], incremental=incremental)
        scores = self.output(states, gate_state=state["gate"], **loss)
        return states, scores, {"layers": layers, "gate": scores.gate_state}

    # pyrefly: ignore[bad-override]
    def forward(
        self,
        prev_output_tokens: Tensor,
        *,
        src_lengths: Optional[Tensor] = None,
        encoder_out: Optional[Dict[str, List[Tensor]]] = None,
        incremental_state: IncrementalState = None,
        stream: Optional[str] = None,
        position: int = 0,
        **loss: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Score the next token at every position.

        Args:
            prev_output_tokens: (B, T).
            src_lengths, encoder_out: ignored; fairseq passes them.
            incremental_state: fairseq's store for step-by-step decoding; only the last token is read then.
            stream: None for separate sequences, which start from the initial state. For windows of a stream its name,
                such as "train": they start from its carried state.
            position: of the first token in the rows of the stream. At 0 the stream starts from the initial state.
            loss: ``target`` (B, T), for the loss instead of all log-probabilities, and how it is computed; see
                :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V) or the loss, a scalar in nats, and a dictionary: ``states``
            (:class:`DecoderStates`), ``scores`` (:class:`Scores`) and ``attn``, [None], which fairseq reads.

        Raises:
            UserError: in training with :attr:`state_dropout` on separate sequences, which carry no state.
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        state: Optional[StreamState] = self.cached(incremental_state)
        if stream is not None:
            state = self.carried_state.get(stream, position)
        if self.state_dropout > 0 and self.training:
            if stream is None:
                raise UserError(
                    f"--dropout-carried-state {self.state_dropout:g}: no state is carried from window to window here: "
                    "train with --task stateful_lm, or give 0"
                )
            state = None if state is None else self._drop_rows(state)
        states, scores, state = self.score(
            tokens,
            state or self.initial_state(len(tokens)),
            incremental=incremental_state is not None,
            **loss,
        )
        if incremental_state is not None:
            self.cache(incremental_state, state)
        elif stream is not None:
            self.carried_state.set(stream, position + tokens.size(1), state)
        return scores.output, {"attn": [None], "states": states, "scores": scores}

    def _drop_rows(self, state: StreamState) -> StreamState:
        """The state with some random rows replaced by the initial state."""
        num_rows, device = next((len(x), x.device) for x in state_tensors(state))
        dropped = torch.rand(num_rows, device=device) < self.state_dropout
        return map_state(partial(replace_rows, dropped), state, self.initial_state(num_rows))
