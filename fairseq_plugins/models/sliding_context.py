"""Language models that carry the tokens they have read in place of a state: Transformers, and fairseq's own models.

Shapes: B batch rows, T tokens of a window, n tokens of context before it, L longest input of a model, V vocabulary.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple, cast

import torch
from fairseq.models import FairseqDecoder, FairseqLanguageModel
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase
from torch import Tensor

from fairseq_plugins.models.decoder import IncrementalState, StreamDecoder
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.scores import DecoderStates, Scores

DEFAULT_LENGTH = 1024
"""L of a model that is not limited, as in fairseq."""

KeyValues = Dict[str, Dict[str, Optional[Tensor]]]
"""fairseq's store of the keys and values of attention, (B, *) each."""

SlidingState = List[Any]
"""Tokens of the context, (B, n), and their :data:`KeyValues`, which are empty outside of a search."""


class SlidingDecoder(StreamDecoder):
    """Reads a stream in strides. The tokens before a stride are its context, in place of a recurrent state.

    An evaluation reads the first L tokens of a stream, and then strides of L // 2 tokens, each behind the L - L // 2
    tokens before it (Baevski & Auli 2019). So a token has at least that much context, if the stream has it. Strides
    begin at fixed places of the stream, so results do not depend on the windows of the caller. With an even L they
    equal those of ``fairseq-eval-lm --tokens-per-sample L --context-window L/2``. Training reads windows without
    context. It cuts windows longer than L, which ``--window-lengths random`` draws, into pieces that do not see each
    other.

    Attributes:
        length: L.
    """

    length: int

    def outputs(self, tokens: Tensor) -> List[Tensor]:
        """Outputs of the embedding and of all layers, (B, t, D_n) each, for a whole input (B, t), t <= L."""
        raise NotImplementedError

    def step_outputs(self, tokens: Tensor, key_values: KeyValues) -> List[Tensor]:
        """The outputs in a step of a search, at least for the last token.

        A decoder may keep keys and values of the tokens in ``key_values`` for the next step, which has one token more.
        They are empty at first, and where the context begins anew.
        """
        return self.outputs(tokens)

    def initial_layers(self, like: Tensor) -> SlidingState:
        return [like.new_empty(len(like), 0, dtype=torch.long), {}]

    def read(self, tokens: Tensor, layers: SlidingState, *, incremental: bool) -> Tuple[DecoderStates, SlidingState]:
        context, given = layers
        key_values: KeyValues = {name: {**tensors} for name, tensors in given.items()}  # a step adds to them
        kept = 0 if self.training else self.length - max(1, self.length // 2)
        context = context[:, :0] if self.training else context
        pieces: List[List[Tensor]] = []
        position = 0
        while position < tokens.size(1):
            piece = tokens[:, position : position + self.length - context.size(1)]
            pieces.append(self._read_behind(context, piece, key_values if incremental else None))
            position += piece.size(1)
            context = torch.cat([context, piece], dim=1)
            if context.size(1) == self.length:
                context = context[:, self.length - kept :]
                key_values.clear()
        layers = [torch.cat(parts, dim=1) for parts in zip(*pieces)]
        states = DecoderStates(layers=layers, top=layers[-1], tokens=tokens)
        return states, [context[:, :0] if self.training else context, key_values]

    def _read_behind(self, context: Tensor, tokens: Tensor, key_values: Optional[KeyValues]) -> List[Tensor]:
        """Outputs of all layers for the tokens (B, T) behind the context (B, n). A step of a search has key_values."""
        if context.size(1) > 0:
            # A row that has ended holds nothing but padding here, and attention without a key gives NaN. Nobody reads
            # the outputs of such a row.
            context, tokens = (
                part.masked_fill(part == self.dictionary.pad(), self.dictionary.eos()) for part in (context, tokens)
            )
        together = torch.cat([context, tokens], dim=1)
        outputs = self.outputs(together) if key_values is None else self.step_outputs(together, key_values)
        return [output[:, -tokens.size(1) :] for output in outputs]

    def max_positions(self) -> int:
        """A language model reads texts of any length."""
        return int(1e6)


def transformer_outputs(
    decoder: TransformerDecoderBase, tokens: Tensor, key_values: Optional[KeyValues] = None
) -> List[Tensor]:
    """Outputs of the embedding and of all layers for the tokens (B, t), or with ``key_values`` for the last one."""
    features, extra = decoder.extract_features(tokens, None, incremental_state=key_values)
    return [*(state.transpose(0, 1) for state in extra["inner_states"][:-1] if state is not None), features]


def transformer_step_outputs(decoder: TransformerDecoderBase, tokens: Tensor, key_values: KeyValues) -> List[Tensor]:
    """:meth:`SlidingDecoder.step_outputs` of a Transformer."""
    if key_values:  # they cover all tokens before the last
        outputs = transformer_outputs(decoder, tokens, key_values)
        for buffer in key_values.values():
            buffer.pop("prev_key_padding_mask")  # None: the context has no padding
        return outputs
    outputs, layers = transformer_outputs(decoder, tokens), cast(Sequence[Any], decoder.layers)
    for layer, x in zip(layers, outputs):
        attention = layer.self_attn
        x = layer.self_attn_layer_norm(x) if layer.normalize_before else x
        key, value = (
            part.unflatten(2, (attention.num_heads, -1)).transpose(1, 2).contiguous()
            for part in (attention.k_proj(x), attention.v_proj(x))
        )
        attention._set_input_buffer(key_values, {"prev_key": key, "prev_value": value})
    return outputs


# fairseq's own models


class FairseqOutput(OutputLayer):
    """The output layer of fairseq's own decoder, which this module holds.

    Attributes:
        temperature: divisor of the logits. An adaptive softmax has no such attribute.
    """

    name = "of fairseq, an adaptive softmax,"

    def __init__(self, decoder: FairseqDecoder):
        super().__init__()
        self.decoder = decoder
        if decoder.adaptive_softmax is None:
            self.temperature = 1.0

    def log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Scores:
        logits = self.decoder.output_layer(states.top)
        logits = logits / getattr(self, "temperature", 1.0)
        return Scores(log_probs=self.decoder.get_normalized_probs((logits, None), log_probs=True))


class FairseqDecoderInStrides(SlidingDecoder):
    """A decoder of fairseq's language models that reads streams.

    Args:
        decoder: fairseq's; the longest input that it reads is L.
    """

    def __init__(self, decoder: FairseqDecoder):
        super().__init__(decoder.dictionary)
        self.decoder = decoder
        self.output = FairseqOutput(decoder)
        self.length = int(min(decoder.max_positions(), DEFAULT_LENGTH))

    def outputs(self, tokens: Tensor) -> List[Tensor]:
        return [self.decoder.extract_features(tokens, encoder_out=None)[0]]

    def step_outputs(self, tokens: Tensor, key_values: KeyValues) -> List[Tensor]:
        if type(self.decoder) is not TransformerDecoder or self.decoder.cfg.base_layers > 0:
            return self.outputs(tokens)
        return transformer_step_outputs(self.decoder, tokens, key_values)[-1:]

    def reorder_incremental_state_scripting(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder what was read. fairseq's decoder itself keeps nothing."""
        self.reorder_incremental_state(incremental_state, new_order)


def stream_model(model: FairseqLanguageModel) -> FairseqLanguageModel:
    """The model itself, or, for a model of fairseq, one with the same weights and a sliding context.

    Raises:
        UserError: if the model of fairseq does not separate its features from its scores.
    """
    if isinstance(model.decoder, StreamDecoder):
        return model
    for name in ("extract_features", "output_layer"):
        if getattr(type(model.decoder), name) is getattr(FairseqDecoder, name):
            raise UserError(f"a {type(model).__name__} does not separate features from scores: use fairseq-eval-lm")
    in_strides: Any = FairseqLanguageModel(FairseqDecoderInStrides(model.decoder))
    return in_strides.train(model.training)
