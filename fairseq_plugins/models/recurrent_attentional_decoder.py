"""Decoder of recurrent encoder-decoders: embedding, recurrent layers with attention, output layer.

Shapes: B sentences, S source positions, T target steps, C embedding width, V target words.
"""

from typing import Any, Dict, Optional, Tuple

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.models.caching_decoder import CachingDecoder, IncrementalState
from fairseq_plugins.models.recurrent_encoder import MAX_POSITIONS, EncoderOutput
from fairseq_plugins.modules.attention import Memory
from fairseq_plugins.modules.attentional_stack import AttentionalStack, AttentionalState
from fairseq_plugins.modules.recurrent_state import select_rows
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.noise import Noise


class RecurrentAttentionalDecoder(CachingDecoder):
    """Predicts the next target token.

    Args:
        dictionary: the target dictionary; its size is V.
        embedding: (V, C).
        stack: recurrent layers and attention.
        output_layer: reads the states of all layers; the attention's output is the last.
    """

    def __init__(
        self, dictionary: Dictionary, *, embedding: nn.Embedding, stack: AttentionalStack, output_layer: OutputLayer
    ):
        super().__init__(dictionary)
        self.embedding = embedding
        self.stack = stack
        self.output = output_layer

    # pyrefly: ignore[bad-override]
    def forward(
        self,
        prev_output_tokens: Tensor,
        *,
        encoder_out: EncoderOutput,
        incremental_state: IncrementalState = None,
        target: Optional[Tensor] = None,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
        noise: Optional[Noise] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Score the next token at every position.

        Args:
            prev_output_tokens: (B, T).
            encoder_out: what the encoder returned.
            incremental_state: the host's store for step-by-step decoding; only the last token is read then.
            target: (B, T); with it the loss of the targets is computed instead of all log-probabilities.
            token_weights, label_smoothing, noise: see :meth:`OutputLayer.forward`.

        Returns:
            log-probabilities (B, T, V), or where ``target`` is given the loss, a scalar in nats, and a
            dictionary: ``attn``, a list of the attention weights (B, T, S) or None, ``states``
            (:class:`DecoderStates`) and ``scores`` (:class:`Scores`).
        """
        tokens = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        embedded = self.embedding(tokens)
        memory, state = self._start(encoder_out, incremental_state)
        outputs = self.stack(embedded, memory, state, tokens=tokens)
        states = DecoderStates(
            layers=[embedded, *outputs.layers],
            top=outputs.top,
            tokens=tokens,
            attention=outputs.attention,
            source=encoder_out["src_tokens"][0],
            incremental=incremental_state is not None,
        )
        scores = self.output(
            states,
            target,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            noise=noise,
            gate_state=self.cached(incremental_state).get("gate"),
        )
        if incremental_state is not None:
            self._keep(incremental_state, memory, {"stack": outputs.state, "gate": scores.gate_state})
        return scores.output, {"attn": [outputs.attention], "states": states, "scores": scores}

    def _start(
        self, encoder_out: EncoderOutput, incremental_state: IncrementalState
    ) -> Tuple[Optional[Memory], AttentionalState]:
        (annotations,) = encoder_out["encoder_out"]
        padding = encoder_out["encoder_padding_mask"][0] if encoder_out["encoder_padding_mask"] else None
        cached = self.cached(incremental_state)
        attention = self.stack.attention
        memory = None
        if attention is not None:
            keys = cached["keys"] if "keys" in cached else attention.keys(annotations)
            memory = Memory(annotations=annotations, keys=keys, padding=padding)
        if cached:
            return memory, cached["stack"]
        start = encoder_out["start"]
        if encoder_out["start_rows"] is not None:
            start = select_rows(start, encoder_out["start_rows"])
        return memory, self.stack.initial_state(start)

    def _keep(self, incremental_state: IncrementalState, memory: Optional[Memory], state: Dict[str, Any]) -> None:
        if memory is not None and memory.keys is not memory.annotations:
            state = {**state, "keys": memory.keys}
        self.cache(incremental_state, state)

    def max_positions(self) -> int:
        return MAX_POSITIONS
