"""Presets of the encoder-decoders: recurrent ones and Transformers.

``*_ARCHITECTURES`` map values of ``--arch`` to their presets.
"""

import json
from typing import Dict

from fairseq_plugins.models.presets.preset import Preset, TyingFlags, Value
from fairseq_plugins.output_layers.base import TieEmbeddings

TRANSLATION = {"task": "translation", "criterion": "regularized_cross_entropy", "distributed-world-size": 1}
"""Flags of ``fairseq-train`` for every run on sentence pairs."""

ADAM_HALVED = {
    **TRANSLATION,
    "optimizer": "adam",
    "lr": 0.001,
    "clip-norm": 5,
    "lr-scheduler": "fixed",
    "lr-shrink": 0.5,
}
"""Adam whose rate is halved in every epoch from ``force-anneal`` on (Takase et al. 2018)."""


# Recurrent encoder-decoders: small defaults and the papers' settings.


ENCODER_DECODER_TYING = TyingFlags(
    requests={
        "share_embeddings": {
            "none": TieEmbeddings.NEVER,
            "output": TieEmbeddings.ALWAYS,
            "all": TieEmbeddings.AUTO,
        }
    },
)
"""The meaning of ``--share-embeddings`` for the output layer. ``all`` also concerns the source."""

# Takase et al. 2018, section 6.2. Dropout and the rest are from the toolkit that the authors modified.
_PUBLISHED = dict(
    rnn_cell="lstm",
    encoder_directions="both",
    encoder_merge="top",
    attention="general",
    input_feeding="on",
    dropout=0.3,
    share_embeddings="none",
    init_range=0.1,
    output_layer="full",
)
_IWSLT = dict(_PUBLISHED, embed_dim=500, hidden_sizes="500 500")
_GIGAWORD = dict(_PUBLISHED, embed_dim=400, hidden_sizes="400 400")
# Luong et al. 2015 as in Shuang et al. 2020, tables XI and XII, whose "dropout 1.0" cannot be a rate
_WMT14 = dict(
    _PUBLISHED,
    embed_dim=1000,
    hidden_sizes="1000 1000 1000 1000",
    encoder_directions="forward",
    dropout=0.2,
)
# The range gives width 256 the gain of 0.1 at width 500. With a range of 0.1 mixtures start slowly here. Attention
# without a matrix is learned sooner, except under the tanh of a mixture (results/multi30k).
_SMALL = dict(_PUBLISHED, embed_dim=256, hidden_sizes="256 256", attention="dot", init_range=0.14)
_MM = dict(rnn_cell="mmlstm", major_proportions="0.7 0.9")
_MM_WMT14 = dict(_MM, hidden_sizes="1070 1070 1070 1070", major_proportions="0.7 0.7 0.8 0.9")
# Experts of the second layer and the attention. The paper names no dropout for them.
_TAKASE_LAYERS: Dict[str, Dict[str, Value]] = {
    "mos": dict(experts_per_layer="2", latent_dropout=0.0),
    "doc": dict(experts_per_layer="2 2", latent_dropout=0.0),
}
_MOS, _DOC = (dict(layer, output_layer=name) for name, layer in _TAKASE_LAYERS.items())

_FULL: Dict[str, Value] = dict(output_layer="full")

# Not in the paper: dropout acts only on the expert hidden states, as it acts before a single softmax, and not on the
# layers that experts and prior read (results/reuters21578).
_SMALL_MIXTURE: Dict[str, Value] = dict(attention="general", latent_dropout=0.3, dropout_output=0.0)
# The warm-up is not in the paper either. Without it the attention is learned late (results/multi30k).
_SMALL_MIXTURES: Dict[str, Dict[str, Value]] = {
    "mos": _SMALL_MIXTURE,
    "doc": dict(_SMALL_MIXTURE, expert_warmup=1000),
}
_ONE_SOFTMAX: Dict[str, Value] = dict(attention="dot")
_SMALL_LAYERS: Dict[str, Dict[str, Value]] = {
    **dict.fromkeys(("full", "tied", "bilinear", "dual", "drill"), _ONE_SOFTMAX),
    **_SMALL_MIXTURES,
}
_MOS_SMALL = dict(_MOS, **_SMALL_MIXTURES["mos"])
_DOC_SMALL = dict(_DOC, **_SMALL_MIXTURES["doc"])

# Multi30k takes half an hour on two CPU cores. The paper's rate of 0.001 at width 500 is too low for width 256
# (results/multi30k).
SMALL_TRAINING = {**ADAM_HALVED, "lr": 0.004, "batch-size": 64, "max-epoch": 5, "force-anneal": 4}
"""Flags of ``fairseq-train`` of the small architectures."""

# As in both toolkits. It is a training flag, because older checkpoints of these architectures have two bias vectors.
_ONE_BIAS = {"rnn-biases": "one"}
# As in the toolkit, the gradient is averaged over sentences before it is clipped.
_TAKASE_TRAINING = {
    **ADAM_HALVED,
    **_ONE_BIAS,
    "sentence-avg": True,
    "batch-size": 256,
    "max-epoch": 15,
    "force-anneal": 10,
}

# Shuang et al. give SGD at 1.0 and 340,000 updates. Batches, clipping and the nine halvings of the rate in the second
# half are from TensorFlow's NMT tutorial.
_WMT14_TRAINING = {
    **TRANSLATION,
    **_ONE_BIAS,
    "sentence-avg": True,
    "batch-size": 128,
    "max-update": 340_000,
    "optimizer": "sgd",
    "lr": 1,
    "lr-scheduler": "manual",
    "update2lr": json.dumps({1: 1, **{170_000 + n * 17_000: 0.5**n for n in range(1, 10)}}),
    "clip-norm": 5,
}

_TAKASE_VARIANTS = {"lstm_encdec": _FULL, "lstm_encdec_mos": _MOS, "lstm_encdec_doc": _DOC}

_SMALL_VARIANTS = {
    "lstm_encdec": _FULL,
    "lstm_encdec_mos": _MOS_SMALL,
    "lstm_encdec_doc": _DOC_SMALL,
    "mmlstm_encdec": _MM,
    "mmlstm_encdec_doc": dict(_MM, **_DOC_SMALL),
}
_WMT14_VARIANTS = {"lstm_encdec": _FULL, "mmlstm_encdec": _MM_WMT14}
_OTHER_LAYERS = {"": _SMALL_LAYERS, "_iwslt": _TAKASE_LAYERS, "_gigaword": _TAKASE_LAYERS}

ENCODER_DECODER_ARCHITECTURES: Dict[str, Preset] = {
    f"{name}{corpus}": Preset(
        {**sizes, **differing}, training, output_layers=_OTHER_LAYERS.get(corpus, {}), tying=ENCODER_DECODER_TYING
    )
    for corpus, sizes, training, variants in (
        ("", _SMALL, SMALL_TRAINING, _SMALL_VARIANTS),
        ("_iwslt", _IWSLT, _TAKASE_TRAINING, _TAKASE_VARIANTS),
        ("_gigaword", _GIGAWORD, _TAKASE_TRAINING, _TAKASE_VARIANTS),
        ("_wmt14", _WMT14, _WMT14_TRAINING, _WMT14_VARIANTS),
    )
    for name, differing in variants.items()
}


# Transformers: small defaults, fairseq's for IWSLT, and the base of WMT.


TRANSFORMER_TYING = TyingFlags(
    requests={
        flag: {True: TieEmbeddings.ALWAYS, False: TieEmbeddings.NEVER}
        for flag in ("share_decoder_input_output_embed", "share_all_embeddings")
    },
    substitute="tied",
)
"""The meaning of fairseq's flags for the output layer."""


def _sizes(*, layers: int, width: int, feed_forward: int, heads: int, dropout: float) -> Dict[str, Value]:
    sizes = dict(layers=layers, embed_dim=width, ffn_embed_dim=feed_forward, attention_heads=heads)
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    return {**sides, "dropout": dropout}


_TRANSFORMER_SMALL = _sizes(layers=3, width=256, feed_forward=1024, heads=4, dropout=0.2)
_TRANSFORMER_IWSLT = _sizes(layers=6, width=512, feed_forward=1024, heads=4, dropout=0.3)
# The base model of Vaswani et al. 2017, which Pappas & Henderson 2019 use, with their program's initialisation.
_TRANSFORMER_WMT14 = _sizes(layers=6, width=512, feed_forward=2048, heads=8, dropout=0.1)
_GLOROT = dict(label_init="glorot")
# Of no paper. With the tanh and the dropout of 0.3 that suit LSTMs, mixtures learn slowly here (results/multi30k).
_EXPERT_STATES: Dict[str, Value] = dict(latent_activation="linear", latent_dropout=0.0)
_TRANSFORMER_MIXTURES = {"mos": _EXPERT_STATES, "doc": dict(_EXPERT_STATES, experts_per_layer="2 2")}

_SHARED = dict(share_decoder_input_output_embed=True)
TRANSFORMER_LAYERS = {
    "full": dict(output_layer="full"),
    "bilinear": dict(_SHARED, output_layer="bilinear"),
    "dual": dict(_SHARED, output_layer="dual"),
    "drill": dict(_SHARED, output_layer="drill", label_depth=2),
    "mos": dict(_SHARED, output_layer="mos"),
    "doc": dict(_SHARED, output_layer="doc"),
}
"""Flags of each output layer of a Transformer."""

_SMOOTHED = {**TRANSLATION, "label-smoothing": 0.1, "optimizer": "adam", "lr-scheduler": "inverse_sqrt"}
# Multi30k takes half an hour on two CPU cores.
TRANSFORMER_SMALL_TRAINING = {
    **_SMOOTHED,
    "batch-size": 64,
    "max-epoch": 5,
    "adam-betas": "(0.9, 0.98)",
    "lr": 0.001,
    "warmup-updates": 1000,
    "clip-norm": 1,
}
"""Flags of ``fairseq-train`` of the small architectures."""

# fairseq's example for IWSLT 2014
_TRANSFORMER_IWSLT_TRAINING = {
    **_SMOOTHED,
    "max-tokens": 4096,
    "max-update": 50_000,
    "adam-betas": "(0.9, 0.98)",
    "lr": 0.0005,
    "warmup-updates": 4000,
    "weight-decay": 0.0001,
    "clip-norm": 0,
}
# Pappas & Henderson: 350,000 updates of two batches of 4,096 tokens. The rate is the peak of Noam's schedule with
# factor 2: 2 / sqrt(512 x 8000).
_TRANSFORMER_WMT14_TRAINING = {
    **_SMOOTHED,
    "max-tokens": 4096,
    "update-freq": 2,
    "max-update": 350_000,
    "adam-betas": "(0.9, 0.998)",
    "lr": 0.00098821,
    "warmup-updates": 8000,
    "warmup-init-lr": 0,
}

TRANSFORMER_ARCHITECTURES: Dict[str, Preset] = {
    f"transformer_{layer}{corpus}": Preset(
        {
            **sizes,
            **output,
            **_TRANSFORMER_MIXTURES.get(layer, {}),
            **(_GLOROT if corpus == "_wmt14" and layer in ("dual", "drill") else {}),
        },
        training,
        output_layers=_TRANSFORMER_MIXTURES,
        tying=TRANSFORMER_TYING,
    )
    for layer, output in TRANSFORMER_LAYERS.items()
    for corpus, sizes, training in (
        ("", _TRANSFORMER_SMALL, TRANSFORMER_SMALL_TRAINING),
        ("_iwslt", _TRANSFORMER_IWSLT, _TRANSFORMER_IWSLT_TRAINING),
        ("_wmt14", _TRANSFORMER_WMT14, _TRANSFORMER_WMT14_TRAINING),
    )
}
