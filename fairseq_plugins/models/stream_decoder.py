"""Decoders of language models that read streams of text, separate sequences, or the steps of a search.

Shapes: B batch rows, T time steps, V vocabulary.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.models.caching_decoder import CachingDecoder, IncrementalState
from fairseq_plugins.modules.carried_state import CarriedState, DecoderState
from fairseq_plugins.modules.recurrent_state import map_state, state_tensors
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.noise import Noise
from fairseq_plugins.output_layers.scores import Scores


class ScoredTokens(NamedTuple):
    """What a decoder makes of tokens.

    Attributes:
        states: what its output layer read.
        scores: what its output layer returned.
        state: its state after the last token.
    """

    states: DecoderStates
    scores: Scores
    state: DecoderState


class StreamDecoder(CachingDecoder):
    """Predicts the next token, and keeps its state between the windows of a stream and the steps of a search.

    A subclass implements :meth:`initial_state` and :meth:`score`.

    Args:
        dictionary: the host's dictionary; its size is V.

    Attributes:
        state_dropout: probability that a row of a window starts from the state of the start of a stream, in training,
            where the window before would hand over its own (Melis et al. 2020). It brings training nearer to
            evaluation, which starts there. Rows are drawn with torch's generator, which fairseq seeds at every update,
            so that a run resumes with the same ones.
    """

    state_dropout: float = 0.0

    def __init__(self, dictionary: Dictionary):
        super().__init__(dictionary)
        self.carried_state = CarriedState()

    def initial_state(self, num_rows: int) -> DecoderState:
        """The zero state of ``num_rows`` rows."""
        raise NotImplementedError

    def score(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        incremental: bool,
        target: Optional[Tensor],
        token_weights: Optional[Tensor],
        label_smoothing: float,
        noise: Optional[Noise],
    ) -> ScoredTokens:
        """Read tokens (B, T) from a state.

        Args:
            tokens: (B, T).
            state: that before the first of them.
            incremental: whether they are a step of a search.
            target, token_weights, label_smoothing, noise: see :meth:`OutputLayer.forward`.
        """
        raise NotImplementedError

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
        target: Optional[Tensor] = None,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
        noise: Optional[Noise] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Score the next token at every position.

        Args:
            prev_output_tokens: (B, T).
            src_lengths, encoder_out: ignored; the host passes them.
            incremental_state: the host's store for step-by-step decoding; only the last token is read then.
            stream: None for separate sequences, which start from a zero state; or the name of a stream whose parallel
                rows these are, such as "train": they go on from its carried state.
            position: of the first of these tokens in the rows of the stream; at 0 it starts from a zero state.
            target: (B, T); with it the loss of the targets is computed instead of all log-probabilities.
            token_weights, label_smoothing, noise: see :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V), or where ``target`` is given the loss, a scalar in nats, and a
            dictionary: ``states`` (:class:`DecoderStates`), ``scores`` (:class:`Scores`) and ``attn``, [None], which
            the host asks for.

        Raises:
            ValueError: in training with :attr:`state_dropout` on separate sequences, which carry no state.
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        state: Optional[DecoderState] = self.cached(incremental_state)
        if stream is not None:
            state = self.carried_state.get(stream, position)
        if self.state_dropout > 0 and self.training:
            if stream is None:
                raise ValueError(
                    f"--dropout-carried-state {self.state_dropout:g}: no state is carried from window to window here: "
                    "train with --task stateful_lm, or give 0"
                )
            state = None if state is None else self._drop_rows(state)
        scored = self.score(
            tokens,
            state or self.initial_state(len(tokens)),
            incremental=incremental_state is not None,
            target=target,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            noise=noise,
        )
        if incremental_state is not None:
            self.cache(incremental_state, scored.state)
        elif stream is not None:
            self.carried_state.set(stream, position + tokens.size(1), scored.state)
        return scored.scores.output, {"attn": [None], "states": scored.states, "scores": scored.scores}

    def _drop_rows(self, state: DecoderState) -> DecoderState:
        """The state with some rows, drawn at random, as at the start of a stream."""
        num_rows, device = next((len(x), x.device) for x in state_tensors(state))
        dropped = torch.rand(num_rows, device=device) < self.state_dropout

        def choose(carried: Tensor, start: Tensor) -> Tensor:
            return torch.where(dropped.view(-1, *[1] * (carried.dim() - 1)), start.to(carried), carried)

        return map_state(choose, state, self.initial_state(num_rows))
