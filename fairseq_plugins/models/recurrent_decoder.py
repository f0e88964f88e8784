"""Decoder of recurrent language models: embedding, recurrent stack, output layer.

Shapes: B batch rows, T time steps, C embedding width, V vocabulary.
"""

from typing import Any, Dict, List, Optional, Tuple

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.models.caching_decoder import CachingDecoder, IncrementalState
from fairseq_plugins.modules.carried_state import CarriedState, DecoderState
from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.embedding import WordDropoutEmbedding
from fairseq_plugins.modules.recurrent_stack import RecurrentStack
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.decoder_states import DecoderStates


class RecurrentDecoder(CachingDecoder):
    """Predicts the next token of a stream or of separate sequences.

    Args:
        dictionary: the host's dictionary; its size is V.
        embedding: input embedding, (V, C).
        input_dropout: dropout of the embedded input.
        stack: the recurrent layers.
        output_layer: reads the states of all layers.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        embedding: WordDropoutEmbedding,
        input_dropout: BroadcastDropout,
        stack: RecurrentStack,
        output_layer: OutputLayer,
    ):
        super().__init__(dictionary)
        self.embedding = embedding
        self.input_dropout = input_dropout
        self.stack = stack
        self.output = output_layer
        self.carried_state = CarriedState()

    def initial_state(self, num_rows: int) -> DecoderState:
        """The zero state of ``num_rows`` rows."""
        rows = self.embedding.weight.new_empty(num_rows, 0)
        return {"layers": self.stack.initial_state(rows), "gate": self.output.gate.initial_state(rows)}

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
            token_weights, label_smoothing: see :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V), or where ``target`` is given the loss, a scalar in nats, and a
            dictionary: ``states`` (:class:`DecoderStates`) and ``scores`` (:class:`Scores`).
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        state: Optional[DecoderState] = self.cached(incremental_state)
        if stream is not None:
            state = self.carried_state.get(stream, position)
        state = state or self.initial_state(len(tokens))
        embedded = self.input_dropout(self.embedding(tokens))
        outputs = self.stack(embedded, state["layers"], tokens=tokens)
        states = DecoderStates(
            layers=[embedded, *outputs.layers],
            top=outputs.top,
            tokens=tokens,
            incremental=incremental_state is not None,
        )
        scores = self.output(
            states,
            target,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            gate_state=state["gate"],
        )
        new_state = {"layers": outputs.state, "gate": scores.gate_state}
        if incremental_state is not None:
            self.cache(incremental_state, new_state)
        elif stream is not None:
            self.carried_state.set(stream, position + tokens.size(1), new_state)
        return scores.output, {"attn": [None], "states": states, "scores": scores}
