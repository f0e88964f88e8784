"""Transformers: small defaults, the host's for IWSLT, and the base of WMT."""

from argparse import Namespace
from typing import Dict

from fairseq.models.transformer import base_architecture

from fairseq_plugins.models.presets.preset import Preset, Value, apply_preset
from fairseq_plugins.models.presets.translation_training import TRANSLATION
from fairseq_plugins.output_layers.sharing import SharingFlags, Wish

SHARING_FLAGS = SharingFlags(
    wishes={
        flag: {True: Wish.SHARED, False: Wish.SEPARATE}
        for flag in ("share_decoder_input_output_embed", "share_all_embeddings")
    },
    substitute="tied",
    cannot_share="--output-layer {layer} has a matrix of its own, which the flags that share the embedding forbid: "
    "take --output-layer tied",
    must_share="--output-layer {layer} needs a model that shares its embedding: give "
    "--share-decoder-input-output-embed, or take --output-layer full",
)
"""What the host's flags mean to the output layer."""


def _sizes(*, layers: int, width: int, feed_forward: int, heads: int, dropout: float) -> Dict[str, Value]:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            *(("layers", layers), ("embed_dim", width)),
            *(("ffn_embed_dim", feed_forward), ("attention_heads", heads)),
        )
    }
    return {**sides, "dropout": dropout}


_SMALL = _sizes(layers=3, width=256, feed_forward=1024, heads=4, dropout=0.2)
_IWSLT = _sizes(layers=6, width=512, feed_forward=1024, heads=4, dropout=0.3)
# Vaswani et al. 2017, base, which Pappas & Henderson 2019 take, with the start of their program for all matrices
_WMT14 = _sizes(layers=6, width=512, feed_forward=2048, heads=8, dropout=0.1)
_GLOROT = dict(label_init="glorot")

_SHARED = dict(share_decoder_input_output_embed=True)
_LAYERS = {
    "full": dict(output_layer="full"),
    "bilinear": dict(_SHARED, output_layer="bilinear"),
    "dual": dict(_SHARED, output_layer="dual"),
    "drill": dict(_SHARED, output_layer="drill", label_depth=2),
    "mos": dict(_SHARED, output_layer="mos"),
    "doc": dict(_SHARED, output_layer="doc"),
}

_SMOOTHED = {**TRANSLATION, "label-smoothing": 0.1, "optimizer": "adam", "lr-scheduler": "inverse_sqrt"}
# Multi30k in half an hour of two CPU cores
SMALL_TRAINING = {
    **_SMOOTHED,
    "batch-size": 64,
    "max-epoch": 5,
    "adam-betas": "(0.9, 0.98)",
    "lr": 0.001,
    "warmup-updates": 1000,
    "clip-norm": 1,
}
"""Flags of ``fairseq-train`` of the small architectures."""

# the host's example for IWSLT 2014
_IWSLT_TRAINING = {
    **_SMOOTHED,
    "max-tokens": 4096,
    "max-update": 50_000,
    "adam-betas": "(0.9, 0.98)",
    "lr": 0.0005,
    "warmup-updates": 4000,
    "weight-decay": 0.0001,
    "clip-norm": 0,
}
# Pappas & Henderson: 350,000 updates of two batches of 4,096 tokens, the rate that of Noam's schedule with factor 2 at
# its peak, 2 / sqrt(512 x 8000)
_WMT14_TRAINING = {
    **_SMOOTHED,
    "max-tokens": 4096,
    "update-freq": 2,
    "max-update": 350_000,
    "adam-betas": "(0.9, 0.998)",
    "lr": 0.00098821,
    "warmup-updates": 8000,
    "warmup-init-lr": 0,
}

ARCHITECTURES: Dict[str, Preset] = {
    f"transformer_{layer}{corpus}": Preset(
        {**sizes, **output, **(_GLOROT if corpus == "_wmt14" and layer in ("dual", "drill") else {})}, training
    )
    for layer, output in _LAYERS.items()
    for corpus, sizes, training in (
        ("", _SMALL, SMALL_TRAINING),
        ("_iwslt", _IWSLT, _IWSLT_TRAINING),
        ("_wmt14", _WMT14, _WMT14_TRAINING),
    )
}
"""Values of ``--arch`` and their presets."""


def apply_transformer_preset(preset: Preset, args: Namespace) -> None:
    """Set the flags that ``args`` does not hold yet, the host's defaults among them.

    A full softmax becomes the tied one where the host's flags share the decoder's embedding; where ``args`` holds
    either, the embedding is shared as it needs.
    """
    SHARING_FLAGS.complete(args, preset.model)
    apply_preset(preset, args)
    base_architecture(args)
