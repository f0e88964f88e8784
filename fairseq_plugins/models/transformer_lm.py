"""A Transformer language model with any output layer: fairseq's decoder without attention to a source.

Shapes: B batch rows, T tokens of a window, n tokens of context before it, L longest input of the decoder, V vocabulary.
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any, List, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel, register_model, register_model_architecture
from fairseq.models.transformer import Embedding, TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from torch import Tensor, nn

from fairseq_plugins.components import ModelFlags
from fairseq_plugins.data.text import TextTask, check_reads_one_text
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.presets.language_models import TRANSFORMER_LM_ARCHITECTURES, apply_transformer_lm_preset
from fairseq_plugins.models.recurrent_lm import StreamDecoder
from fairseq_plugins.models.transformer import LEFT_OUT, TransformerDecoderWithOutputLayer, check_decoder_flags
from fairseq_plugins.modules.cell import CarriedState, DecoderState
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.output_layers.scores import DecoderStates, Scores

DEFAULT_LENGTH = 1024
"""L for a task that limits neither positions nor samples, as in fairseq."""

FLAGS = ModelFlags(
    TransformerLanguageModelConfig,
    OUTPUT_LAYERS,
    OUTPUT_GATES,
    left_out=(
        *(*LEFT_OUT, "decoder_input_dim", "adaptive_input_factor", "adaptive_input_cutoff"),
        *("character_embeddings", "character_filters", "character_embedding_dim", "char_embedder_highway_layers"),
    ),
)


# Both bases decode the tokens of a search and of a text; forward is StreamDecoder's.
# pyrefly: ignore[inconsistent-inheritance]
class TransformerLanguageModelDecoder(StreamDecoder, TransformerDecoderWithOutputLayer):
    """fairseq's decoder without a source, which carries the tokens that it has read along a stream.

    These tokens take the place of a recurrent state. An evaluation reads the first L tokens of a stream, and then
    strides of L // 2 tokens, each behind the L - L // 2 tokens before it (Baevski & Auli 2019). So a token has at least
    that much context, if the stream has it. Strides begin at fixed places of the stream, so results do not depend on
    the windows of the caller. Training reads windows without context.

    Args:
        cfg: fairseq's configuration; ``cfg.max_target_positions`` is L.
        dictionary: fairseq's dictionary; its size is V.
        embed_tokens: the input embedding.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding):
        # StreamDecoder's constructor would pass the dictionary alone to fairseq's
        TransformerDecoderWithOutputLayer.__init__(self, cfg, dictionary, embed_tokens, no_encoder_attn=True)
        self.carried_state = CarriedState()
        self.length = int(cfg.max_target_positions)

    def initial_state(self, num_rows: int) -> DecoderState:
        rows = self.embed_tokens.weight.new_empty(num_rows, 0)
        return {"context": rows.long(), "gate": self.output.gate.initial_state(rows)}

    def score(
        self, tokens: Tensor, state: DecoderState, *, incremental: bool, **loss: Any
    ) -> Tuple[DecoderStates, Scores, DecoderState]:
        stride = max(1, self.length // 2)
        kept = 0 if self.training else self.length - stride
        context = state["context"][:, :0] if self.training else state["context"]
        pieces: List[List[Tensor]] = []
        start = 0
        while start < tokens.size(1):
            piece = tokens[:, start : start + self.length - context.size(1)]
            pieces.append(self._read(context, piece))
            start += piece.size(1)
            context = torch.cat([context, piece], dim=1)
            if context.size(1) == self.length:
                context = context[:, self.length - kept :]
        layers = [torch.cat(parts, dim=1) for parts in zip(*pieces)]
        states = DecoderStates(layers=layers, top=layers[-1], tokens=tokens, incremental=incremental)
        scores = self.output(states, gate_state=state["gate"], **loss)
        return states, scores, {"context": context[:, :0] if self.training else context, "gate": scores.gate_state}

    def _read(self, context: Tensor, tokens: Tensor) -> List[Tensor]:
        """Outputs (B, T, D) of the embedding and of all layers for the tokens (B, T) behind the context (B, n)."""
        if context.size(1) > 0:
            # A row that has ended holds nothing but padding here, and attention without a key gives NaN. Nobody reads
            # the outputs of such a row.
            context, tokens = (
                part.masked_fill(part == self.padding_idx, self.dictionary.eos()) for part in (context, tokens)
            )
        features, extra = self.extract_features(torch.cat([context, tokens], dim=1), None)
        outputs = [state.transpose(0, 1) for state in extra["inner_states"][:-1] if state is not None]
        return [output[:, context.size(1) :] for output in (*outputs, features)]

    def max_positions(self) -> int:
        """A language model reads texts of any length."""
        return int(1e6)


@register_model("transformer_lm_with_output_layer")
class TransformerLanguageModel(FairseqLanguageModel):
    """Transformer language model with any output layer (Vaswani et al. 2017, decoder only).

    The architectures ``transformer_lm_full``, ``_bilinear``, ``_dual``, ``_drill``, ``_mos`` and ``_doc`` differ in
    their output layer only. The flags are those of fairseq's ``transformer_lm`` except ``LEFT_OUT``, and those of
    output layers and gates. The decoder reads at most ``--max-target-positions`` tokens at a time, by default
    ``--tokens-per-sample``.
    """

    flags = FLAGS

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "TransformerLanguageModel":
        """Build the model for the task's dictionary.

        Raises:
            UserError: on a value that does not fit, with the flag and the remedy.
        """
        check_reads_one_text(task)
        if getattr(args, "max_target_positions", None) is None:
            args.max_target_positions = getattr(args, "tokens_per_sample", DEFAULT_LENGTH)
        check_decoder_flags(args)
        dictionary = task.source_dictionary
        embedding = Embedding(len(dictionary), args.decoder_embed_dim, dictionary.pad())
        config: Any = TransformerConfig.from_namespace(args)
        decoder = TransformerLanguageModelDecoder(config, dictionary, embedding)
        return keep_vocabularies(cls(decoder), task, embeddings=[embedding])


for name, preset in TRANSFORMER_LM_ARCHITECTURES.items():
    register_model_architecture("transformer_lm_with_output_layer", name)(partial(apply_transformer_lm_preset, preset))
