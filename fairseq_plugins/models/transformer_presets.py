"""Hyper-parameters of the Transformers: small defaults, the host's for IWSLT, and the base of WMT."""

from argparse import Namespace
from dataclasses import replace
from typing import Dict

from fairseq.models.transformer import base_architecture

from fairseq_plugins.models.presets import Preset, Value, apply_preset


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

ARCHITECTURES: Dict[str, Preset] = {
    f"transformer_{layer}{corpus}": Preset(
        {**sizes, **output, **(_GLOROT if corpus == "_wmt14" and layer in ("dual", "drill") else {})}
    )
    for layer, output in _LAYERS.items()
    for corpus, sizes in (("", _SMALL), ("_iwslt", _IWSLT), ("_wmt14", _WMT14))
}
"""Values of ``--arch`` and their presets."""


def apply_transformer_preset(preset: Preset, args: Namespace) -> None:
    """Set the flags that ``args`` does not hold yet, the host's defaults among them.

    A full softmax becomes the tied one where the host's flags share the decoder's embedding; where ``args`` holds
    either, the embedding is shared as it needs.
    """
    shares = any(getattr(args, flag, False) for flag in (*_SHARED, "share_all_embeddings"))
    if shares and preset.model["output_layer"] == "full" and not hasattr(args, "output_layer"):
        args.output_layer = "tied"
    network = {flag: value for flag, value in preset.model.items() if flag not in _SHARED}
    needs = {"full": {}, "tied": _SHARED}.get(getattr(args, "output_layer", None))
    apply_preset(preset if needs is None else replace(preset, model={**network, **needs}), args)
    base_architecture(args)
