"""Encoder of recurrent encoder-decoders.

Shapes: B sentences, S source positions, C embedding width, D_N width of the last layer.
"""

from typing import Any, List, Optional, TypedDict

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_plugins.modules.encoder_stack import EncoderStack
from fairseq_plugins.modules.recurrent_stack import StackState
from fairseq_plugins.modules.recurrent_state import select_rows

MAX_POSITIONS = 100_000
"""Tokens of the longest sentence that the host may ask for; recurrent networks have no limit of their own."""


class EncoderOutput(TypedDict):
    """What the encoder returns, a row or an entry for each sentence.

    Attributes:
        encoder_out: one tensor of annotations, (B, S, D_N).
        encoder_padding_mask: one tensor, (B, S), True at padding; none where nothing is padded.
        src_tokens: one tensor, the tokens, (B, S).
        start: the state where the layers of the decoder start.
        start_rows: the row of ``start`` that belongs to each sentence, (B); None where it is the sentence's own.
    """

    encoder_out: List[Tensor]
    encoder_padding_mask: List[Tensor]
    src_tokens: List[Tensor]
    start: StackState
    start_rows: Optional[Tensor]


class RecurrentEncoder(FairseqEncoder):
    """Reads source sentences, wherever their padding stands; each ends with the host's end mark.

    Args:
        dictionary: the source dictionary.
        embedding: (source words, C).
        stack: all directions and layers.
    """

    def __init__(self, dictionary: Dictionary, *, embedding: nn.Embedding, stack: EncoderStack):
        super().__init__(dictionary)
        self.embedding = embedding
        self.stack = stack
        self.padding_idx = dictionary.pad()

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **unused: Any) -> EncoderOutput:
        """Annotations of tokens (B, S)."""
        padding = src_tokens.eq(self.padding_idx)
        has_padding = bool(padding.any())
        annotations, state = self.stack(self.embedding(src_tokens), padding if has_padding else None, tokens=src_tokens)
        return {
            "encoder_out": [annotations],
            "encoder_padding_mask": [padding] if has_padding else [],
            "src_tokens": [src_tokens],
            "start": state,
            "start_rows": None,
        }

    def reorder_encoder_out(self, encoder_out: EncoderOutput, new_order: Tensor) -> EncoderOutput:
        """Reorder the sentences, as beam search asks at every step; the start, read at the first, stays as it is."""
        rows = encoder_out["start_rows"]
        return {
            "encoder_out": select_rows(encoder_out["encoder_out"], new_order),
            "encoder_padding_mask": select_rows(encoder_out["encoder_padding_mask"], new_order),
            "src_tokens": select_rows(encoder_out["src_tokens"], new_order),
            "start": encoder_out["start"],
            "start_rows": new_order if rows is None else rows.index_select(0, new_order),
        }

    def max_positions(self) -> int:
        return MAX_POSITIONS
