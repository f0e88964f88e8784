"""A Transformer language model with any output layer: fairseq's decoder without attention to a source.

Shapes: B batch rows, L longest input of the decoder, V vocabulary.
"""

from argparse import Namespace
from typing import Any, List

from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import Embedding, TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig, base_lm_architecture
from torch import Tensor, nn

from fairseq_plugins.data.tasks import TextTask, check_reads_one_text
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.presets.language_models import TRANSFORMER_LM_ARCHITECTURES
from fairseq_plugins.models.presets.preset import register_presets
from fairseq_plugins.models.sliding_context import (
    DEFAULT_LENGTH,
    KeyValues,
    SlidingDecoder,
    transformer_outputs,
    transformer_step_outputs,
)
from fairseq_plugins.models.transformer import LEFT_OUT, TransformerDecoderWithOutputLayer, check_decoder_flags
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.parts import ModelFlags

LM_LEFT_OUT = (
    *(*LEFT_OUT, "decoder_input_dim", "adaptive_input_factor", "adaptive_input_cutoff"),
    *("character_embeddings", "character_filters", "character_embedding_dim", "char_embedder_highway_layers"),
)


# Both bases define forward. SlidingDecoder comes first, so StreamDecoder's is used.
class TransformerLanguageModelDecoder(SlidingDecoder, TransformerDecoderWithOutputLayer):
    """fairseq's decoder without a source, which reads a stream in strides.

    Args:
        cfg: fairseq's configuration; ``cfg.max_target_positions`` is L.
        dictionary: fairseq's dictionary; its size is V.
        embed_tokens: the input embedding.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=True)
        self.length = int(cfg.max_target_positions)

    def outputs(self, tokens: Tensor) -> List[Tensor]:
        return transformer_outputs(self, tokens)

    def step_outputs(self, tokens: Tensor, key_values: KeyValues) -> List[Tensor]:
        return transformer_step_outputs(self, tokens, key_values)


@register_model("transformer_lm_with_output_layer")
class TransformerLanguageModel(FairseqLanguageModel):
    """Transformer language model with any output layer (Vaswani et al. 2017, decoder only).

    The architectures ``transformer_lm_full``, ``_bilinear``, ``_dual``, ``_drill``, ``_mos`` and ``_doc`` differ in
    their output layer only. The flags are those of fairseq's ``transformer_lm`` except ``LM_LEFT_OUT``, and those of
    output layers and gates. The decoder reads at most ``--tokens-per-sample`` tokens at a time, or
    ``--max-target-positions``, a flag of ``--task language_modeling``.
    """

    flags = ModelFlags(TransformerLanguageModelConfig, OUTPUT_LAYERS, OUTPUT_GATES, left_out=LM_LEFT_OUT)
    add_args = flags.add_args

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
        return keep_vocabularies(cls(decoder), task)


register_presets("transformer_lm_with_output_layer", TRANSFORMER_LM_ARCHITECTURES, defaults=base_lm_architecture)
