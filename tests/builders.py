"""Builders of dictionaries, tasks, models, output layers and states: small, and through the registries of fairseq."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Iterable, Optional, Sequence, Union

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.lstm_lm import LSTMLanguageModel
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from torch import nn

import fairseq_plugins  # noqa: F401
from fairseq_plugins.models.sliding_context import stream_model
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers import base
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, TieEmbeddings
from fairseq_plugins.output_layers.scores import DecoderStates
from fairseq_plugins.parts import option_names

SOURCE_SIZE, VOCAB_SIZE = 19, 23
"""Words of the tiny models' dictionaries, fairseq's four included."""

CELLS_AND_LAYERS = [("lstm", layer) for layer in sorted(OUTPUT_LAYERS)]
CELLS_AND_LAYERS += [(cell, "doc") for cell in sorted(RECURRENT_CELLS) if cell != "lstm"]
"""Every output layer above the LSTM, and doc above every cell. Output layers see nothing of a cell but its states, and
doc sees those of all layers, so that these pairs find what is wrong with a part alone."""


def never_shares(layer: str) -> bool:
    """Whether an output layer has a matrix of its own beside the embedding."""
    return OUTPUT_LAYERS.find(layer).tie_embeddings is TieEmbeddings.NEVER


def dictionary_of(words: Iterable[str]) -> Dictionary:
    """A dictionary of fairseq's four symbols and these words."""
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    return dictionary


def make_dictionary(size: int) -> Dictionary:
    """A dictionary of ``size`` symbols, fairseq's four included."""
    return dictionary_of(f"w{i}" for i in range(size - len(Dictionary())))


def make_task(vocab_size: int, source_size: Optional[int] = None) -> SimpleNamespace:
    """A task as models and criteria see it, with one dictionary for both sides where no source size is given."""
    target = make_dictionary(vocab_size)
    source = target if source_size is None else make_dictionary(source_size)
    return SimpleNamespace(source_dictionary=source, target_dictionary=target)


def randomise(module: nn.Module, limit: float = 0.7, *, seed: Optional[int] = None) -> nn.Module:
    """Draw all parameters from U(-limit, limit), by the seed where one is given; returns the module."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-limit, limit, generator=generator)
    return module


# models


def build_model(arch: str, task: SimpleNamespace, **flags) -> nn.Module:
    """A model, through the registered architecture as in fairseq."""
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    if getattr(args, "word_skip", None):
        args.word_skip = "w0"  # made-up dictionaries hold no symbol between words
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def build_lm(arch: str, vocab_size: int, **flags) -> nn.Module:
    """A language model of so many words."""
    return build_model(arch, make_task(vocab_size), **flags)


def build_encdec(arch: str, source_size: int, vocab_size: int, **flags) -> nn.Module:
    """An encoder-decoder with a dictionary for each side."""
    return build_model(arch, make_task(vocab_size, source_size), **flags)


UNBOUNDED = ("diagonal", "rectifier")
"""Cells whose outputs grow with their weights; large ones would leave attention exact zeros."""


def _limit_of_weights(flags: dict) -> float:
    return 0.3 if flags.get("rnn_cell") in UNBOUNDED else 0.7


def build_tiny_lm(output_layer: str, *, vocab_size: int = VOCAB_SIZE, seed: int = 0, **flags) -> nn.Module:
    """A recurrent language model of two layers, without dropout, all weights well away from zero."""
    sizes = dict(embed_dim=8, hidden_sizes="12 8")
    rates = {f"dropout_{place}" for place in ("embedding", "input", "hidden", "output")}
    rates |= _dropout_rates(OUTPUT_LAYERS.get(output_layer), RECURRENT_CELLS.get(flags.get("rnn_cell", "lstm")))
    flags = {**sizes, **dict.fromkeys(rates, 0.0), "output_layer": output_layer, **flags}
    return randomise(build_lm("lstm_lm_awd", vocab_size, **flags), _limit_of_weights(flags), seed=seed)


def tiny_base_flags(output_layer: str, **flags) -> dict:
    """Flags of a recurrent language model of two layers, as checkpoints of models that are built on it keep them."""
    return {"arch": "lstm_lm_awd", "embed_dim": 8, "hidden_sizes": "12 8", "output_layer": output_layer, **flags}


def build_tiny_gated_lm(*bases: Union[str, dict], vocab_size: int = VOCAB_SIZE, seed: int = 0, **flags) -> nn.Module:
    """Language models under one gate, by default without dropout, all weights well away from zero.

    Each is given by its flags, or by the name of its output layer for those of :func:`tiny_base_flags`.
    """
    flags_of_bases = [tiny_base_flags(base) if isinstance(base, str) else base for base in bases]
    flags = {"output_gate": "iog", "gate_dim": 5, "gate_dropout": 0.0, **flags}
    return randomise(build_lm("gated_lm", vocab_size, base_model_flags=flags_of_bases, **flags), seed=seed)


def build_tiny_encdec(
    output_layer: str, *, source_size: int = SOURCE_SIZE, vocab_size: int = VOCAB_SIZE, seed: int = 0, **flags
) -> nn.Module:
    """A recurrent encoder-decoder of two layers, without dropout or warm-up, all weights well away from zero."""
    sizes = dict(embed_dim=8, hidden_sizes="12 8", dropout=0.0)
    rates = dict.fromkeys(_dropout_rates(OUTPUT_LAYERS.get(output_layer)), 0.0)
    warmup = {"expert_warmup": 0} if output_layer == "doc" else {}
    flags = {**sizes, **rates, **warmup, **flags}
    model = build_encdec("lstm_encdec", source_size, vocab_size, output_layer=output_layer, **flags)
    return randomise(model, _limit_of_weights(flags), seed=seed)


def tiny_transformer_lm_flags(output_layer: str, **flags) -> dict:
    """Flags of a Transformer language model of two layers, without dropout."""
    flags.update({"latent_dropout": 0.0} if output_layer in ("mos", "doc") else {})
    flags.update({"experts_per_layer": "1 1 2"} if output_layer == "doc" else {})
    sizes = dict(embed_dim=8, ffn_embed_dim=16, layers=2, attention_heads=2)
    sizes = {f"decoder_{name}": value for name, value in sizes.items()}
    return {
        "arch": "transformer_lm_full",
        **sizes,
        "max_target_positions": 64,
        "dropout": 0.0,
        "output_layer": output_layer,
        **flags,
    }


def build_tiny_transformer(
    arch: str,
    *,
    source_size: int = SOURCE_SIZE,
    vocab_size: int = VOCAB_SIZE,
    init_range: float = 0.5,
    seed: int = 0,
    **flags,
) -> nn.Module:
    """A Transformer of two layers on either side, without dropout, weights within ``init_range``."""
    sizes = dict(embed_dim=8, ffn_embed_dim=16, layers=2, attention_heads=2)
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    flags = {**sizes, "max_source_positions": 64, "max_target_positions": 64, "dropout": 0.0, **flags}
    return randomise(build_encdec(arch, source_size, vocab_size, **flags), init_range, seed=seed)


def _dropout_rates(*parts):
    """Names of dropout rates of an output layer and a cell, None where they are unknown."""
    declared = {name for part in filter(None, parts) for name in option_names(part.Options)}
    return declared & {"latent_dropout", "dropout_weight"}


# models of fairseq

FAIRSEQ_ARCHITECTURES = ("transformer_lm", "lstm_lm")
MAX_POSITIONS = 14
"""Tokens that they read at most."""


def build_fairseq_lm(arch: str):
    """A model of two layers, without dropout, behind a sliding context."""
    return stream_model(build_fairseqs_own(arch))


def build_fairseqs_own(arch: str):
    """The same as fairseq builds it."""
    task = make_task(VOCAB_SIZE)
    task.dictionary = task.source_dictionary
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


# output layers


def build_output_layer(
    name: str,
    *,
    widths: Sequence[int],
    vocab_size: int,
    shared_weight: Optional[nn.Parameter] = None,
    has_shared_weight: bool = True,
    **flags,
) -> OutputLayer:
    """A layer as it starts; it may share the embedding that is given, or one that is drawn."""
    if shared_weight is None and has_shared_weight and not never_shares(name):
        shared_weight = nn.Parameter(torch.empty(vocab_size, widths[0]).uniform_(-0.5, 0.5))
    dictionary = make_dictionary(vocab_size)
    args = Namespace(output_layer=name, **flags)
    return base.build_output_layer(args, dictionary=dictionary, layer_widths=widths, shared_weight=shared_weight)


def build_random_output_layer(name: str, *, dtype: torch.dtype = torch.float64, **options) -> OutputLayer:
    """A layer whose weights are all well away from zero, with the options of :func:`build_output_layer`."""
    return randomise(build_output_layer(name, **options).to(dtype))


def make_states(
    widths: Sequence[int], num_rows: int = 3, num_steps: int = 4, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> DecoderStates:
    """Random states of layers of the given widths, (num_rows, num_steps, width) each."""
    layers = [scale * torch.randn(num_rows, num_steps, width, dtype=dtype) for width in widths]
    return DecoderStates(layers=layers, top=layers[-1], tokens=torch.zeros(num_rows, num_steps, dtype=torch.long))
