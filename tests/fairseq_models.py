"""Small language models of fairseq."""

from argparse import Namespace
from types import SimpleNamespace

from builders import VOCAB_SIZE, make_dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.lstm_lm import LSTMLanguageModel
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig

from fairseq_plugins.models.sliding_context import stream_model

FAIRSEQ_ARCHITECTURES = ("transformer_lm", "lstm_lm")
MAX_POSITIONS = 14
"""Tokens that they read at most."""


def build_fairseq_lm(arch: str):
    """A model of two layers, without dropout, behind a sliding context."""
    return stream_model(build_fairseqs_own(arch))


def build_fairseqs_own(arch: str):
    """The same as fairseq builds it."""
    dictionary = make_dictionary(VOCAB_SIZE)
    task = SimpleNamespace(dictionary=dictionary, source_dictionary=dictionary, target_dictionary=dictionary)
    if arch == "transformer_lm":
        sizes = dict(decoder_layers=2, decoder_embed_dim=8, decoder_output_dim=8, decoder_input_dim=8)
        sizes.update(decoder_ffn_embed_dim=16, decoder_attention_heads=2, max_target_positions=MAX_POSITIONS)
        return TransformerLanguageModel.build_model(TransformerLanguageModelConfig(**sizes), task)
    sizes = dict(decoder_layers=2, decoder_embed_dim=8, decoder_hidden_size=8, decoder_out_embed_dim=8)
    args = Namespace(
        **sizes, decoder_embed_path=None, residuals=False, max_target_positions=MAX_POSITIONS, criterion=""
    )
    ARCH_CONFIG_REGISTRY[arch](args)
    return LSTMLanguageModel.build_model(args, task)
