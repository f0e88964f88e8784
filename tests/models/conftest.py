"""Encoder-decoders as the host builds them."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugins.flags.registry import option_names
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS


def randomise(model: nn.Module, limit: float, *, seed: int = 0) -> nn.Module:
    """Draw all parameters from U(-limit, limit)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-limit, limit, generator=generator)
    return model


@pytest.fixture
def build_encdec(make_dictionary):
    """``build_encdec(arch, source_size, vocab_size, **flags)``: one dictionary for both where the sizes are equal."""

    def build(arch: str, source_size: int, vocab_size: int, **overrides):
        args = Namespace(arch=arch, **overrides)
        ARCH_CONFIG_REGISTRY[arch](args)
        task = SimpleNamespace(
            source_dictionary=make_dictionary(source_size), target_dictionary=make_dictionary(vocab_size)
        )
        return ARCH_MODEL_REGISTRY[arch].build_model(args, task)

    return build


@pytest.fixture
def build_tiny_encdec(build_encdec):
    """``build_tiny_encdec(output_layer, **flags)``: two layers, no dropout, all weights well away from zero."""

    def build(output_layer: str, *, source_size: int = 19, vocab_size: int = 23, seed: int = 0, **overrides):
        flags = dict(embed_dim=8, hidden_sizes="12 8", dropout=0.0)
        if OUTPUT_LAYERS.get(output_layer) and "latent_dropout" in option_names(OUTPUT_LAYERS[output_layer].Options):
            flags["latent_dropout"] = 0.0
        flags = {**flags, **overrides}
        model = build_encdec("lstm_encdec", source_size, vocab_size, output_layer=output_layer, **flags)
        return randomise(model, 0.7, seed=seed)

    return build


@pytest.fixture
def build_transformer(build_encdec):
    """``build_transformer(arch, **flags)``: two layers on either side, no dropout, weights in +- ``init_range``."""

    def build(
        arch: str, *, source_size: int = 19, vocab_size: int = 23, init_range: float = 0.5, seed: int = 0, **overrides
    ):
        sizes = dict(embed_dim=8, ffn_embed_dim=16, layers=2, attention_heads=2)
        flags = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
        flags = {**flags, "max_source_positions": 64, "max_target_positions": 64, "dropout": 0.0, **overrides}
        return randomise(build_encdec(arch, source_size, vocab_size, **flags), init_range, seed=seed)

    return build
