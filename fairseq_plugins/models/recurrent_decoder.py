"""Decoder of recurrent language models: embedding, recurrent stack, output layer.

Shapes: B batch rows, T time steps, D_n width of layer n (D_0: embedding), V vocabulary.
"""

from typing import Any, List, Optional, Tuple

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.models.stream_decoder import ScoredTokens, StreamDecoder
from fairseq_plugins.modules.carried_state import DecoderState
from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.embedding import WordDropoutEmbedding
from fairseq_plugins.modules.feed_forward import FeedForward
from fairseq_plugins.modules.recurrent_stack import RecurrentStack, StackState
from fairseq_plugins.modules.saved_setting import SavesSettings
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.decoder_states import DecoderStates


def layer_widths(
    embedding: WordDropoutEmbedding, stack: RecurrentStack, feed_forward: Optional[FeedForward]
) -> List[int]:
    """D_0 .. D_N, of the embedding, of each recurrent layer, and of the last where it is not recurrent."""
    last = [] if feed_forward is None else [feed_forward.size]
    return [embedding.embedding_dim, *(layer.hidden_size for layer in stack.layers), *last]


class RecurrentDecoder(StreamDecoder, SavesSettings):
    """Predicts the next token of a stream or of separate sequences.

    Args:
        dictionary: the host's dictionary; its size is V.
        embedding: input embedding, (V, D_0).
        input_dropout: dropout of the embedded input.
        stack: the recurrent layers.
        feed_forward: the last layer, which reads that of the stack after its dropout, or None.
        output_layer: reads the states of all layers.
        state_dropout: see :class:`StreamDecoder`.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        embedding: WordDropoutEmbedding,
        input_dropout: BroadcastDropout,
        stack: RecurrentStack,
        output_layer: OutputLayer,
        feed_forward: Optional[FeedForward] = None,
        state_dropout: float = 0.0,
    ):
        super().__init__(dictionary)
        self.save_setting("output_skip_name", flag="--output-skip", value=stack.skip, older="none")
        self.state_dropout = state_dropout
        self.embedding = embedding
        self.input_dropout = input_dropout
        self.stack = stack
        self.feed_forward = feed_forward
        self.output = output_layer

    @property
    def layer_widths(self) -> List[int]:
        """D_0 .. D_N; see :func:`layer_widths`."""
        return layer_widths(self.embedding, self.stack, self.feed_forward)

    def initial_layers(self, num_rows: int) -> StackState:
        """The zero state of the recurrent layers."""
        return self.stack.initial_state(self._rows(num_rows))

    def initial_state(self, num_rows: int) -> DecoderState:
        gate = self.output.gate.initial_state(self._rows(num_rows))
        return {"layers": self.initial_layers(num_rows), "gate": gate}

    def read(self, tokens: Tensor, layers: StackState, *, incremental: bool) -> Tuple[DecoderStates, StackState]:
        """What the output layer reads of tokens (B, T), and the state of the recurrent layers after them.

        Args:
            tokens: (B, T).
            layers: the state of the recurrent layers before them.
            incremental: whether they are a step of a search.
        """
        embedded = self.input_dropout(self.embedding(tokens))
        outputs = self.stack(embedded, layers, tokens=tokens)
        last = [] if self.feed_forward is None else [self.feed_forward(outputs.layers[-1])]
        states = DecoderStates(
            layers=[embedded, *outputs.layers, *last],
            top=last[0] if last else outputs.top,
            tokens=tokens,
            incremental=incremental,
        )
        return states, outputs.state

    def score(self, tokens: Tensor, state: DecoderState, *, incremental: bool, **loss: Any) -> ScoredTokens:
        states, layers = self.read(tokens, state["layers"], incremental=incremental)
        scores = self.output(states, gate_state=state["gate"], **loss)
        return ScoredTokens(states, scores, {"layers": layers, "gate": scores.gate_state})

    def _rows(self, num_rows: int) -> Tensor:
        return self.embedding.weight.new_empty(num_rows, 0)
