"""Values of the presets against the papers and their programs, numbers of parameters, and what a preset changes."""

import math
from argparse import ArgumentParser, Namespace

import pytest
import torch
from builders import build_encdec, build_lm, tiny_base_flags
from fairseq import options
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.sgd import SGD as FairseqSGD

from fairseq_plugins.models.presets import (
    GATED_LANGUAGE_MODELS,
    LANGUAGE_MODELS,
    apply_preset,
    command_line,
)
from fairseq_plugins.models.presets.translation import ENCODER_DECODER_ARCHITECTURES, TRANSFORMER_ARCHITECTURES
from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoder
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.modules.attention import DotAttention, GeneralAttention
from fairseq_plugins.optim.adaptive import L2Adam

PRESETS = {**LANGUAGE_MODELS, **GATED_LANGUAGE_MODELS, **ENCODER_DECODER_ARCHITECTURES, **TRANSFORMER_ARCHITECTURES}
PTB, WT2, WT103 = 10_000, 33_278, 267_735  # sizes of the vocabularies
TEXT8_WORDS, TEXT8_CHARACTERS = 67_428, 27


def columns(names, table):
    """A table with a row a flag and a column a preset, by preset; a value alone is that of all columns."""
    rows = {flag: row if isinstance(row, list) else [row] * len(names) for flag, row in table.items()}
    return {name: {flag: row[i] for flag, row in rows.items()} for i, name in enumerate(names)}


# Merity et al. 2018, Yang et al. 2018, Takase et al. 2018, with the values of their programs
AVERAGED = [f"lstm_lm_{name}_{corpus}" for name in ("awd", "mos", "doc") for corpus in ("ptb", "wt2")]
AWD, MOS_PTB, MOS_WT2 = "1150 1150 400", "960 960 620", "1150 1150 650"
AVERAGED_MODELS = {
    "embed_dim": [400, 400, 280, 300, 280, 300],
    "hidden_sizes": [AWD, AWD, MOS_PTB, MOS_WT2, MOS_PTB, MOS_WT2],
    "dropout_embedding": 0.1,
    "dropout_input": [0.4, 0.65, 0.4, 0.55, 0.4, 0.55],
    "dropout_hidden": [0.25, 0.2, 0.225, 0.2, 0.225, 0.2],
    "dropout_output": 0.4,
    "latent_dropout": [None, None, 0.29, 0.29, 0.6, 0.6],
    "dropout_weight": 0.5,
    "output_layer": ["tied", "tied", "mos", "mos", "doc", "doc"],
    "experts_per_layer": [None, None, "0 0 0 15", "0 0 0 15", "0 0 5 15", "0 0 5 15"],
    "rnn_cell": "lstm",
}
AVERAGED_TRAININGS = {
    "lr": [30, 30, 20, 15, 20, 15],
    "batch-size": [20, 80, 12, 15, 12, 15],
    "row-groups": [None, None, None, 3, None, 3],
    "activation-regularization": 2,
    "temporal-activation-regularization": 1,
    "weight-decay": 1.2e-6,
    "clip-norm": 0.25,
    "nonmonotone-interval": [5, 5, 5, 5, 60, 60],
    "max-epoch": [500, 750, 1000, 1000, 500, 500],
    "seed": [141, 1882, 28, 1882, 28, 1882],
    "balance": [None, None, None, None, 0.001, 0.001],
    "tokens-per-sample": 70,
    "window-lengths": "random",
    "max-window": [None, None, 70 + 40, 70 + 20, 70 + 40, 70 + 20],
    "batch-size-valid": 10,
}
AVERAGED_FINE_TUNINGS = {
    "lr": [30, 30, 25, 20, 20, 15],
    "max-window": [80, 80, 70 + 40, 70 + 20, 70 + 40, 70 + 20],
    "nonmonotone-interval": [5, 5, 5, 5, 60, 60],
    "balance": [None, None, None, None, 0.001, 0.001],
}

# Zaremba et al. 2015 and Gal & Ghahramani 2016, as Takase et al. 2017 trained the base models of their gate
BASES = [f"lstm_lm_{family}_{size}_ptb" for size in ("medium", "large") for family in ("zaremba", "variational")]
BASES += [f"lstm_lm_{family}_medium_wt2" for family in ("zaremba", "variational")]
BASE_MODELS = {
    "rnn_cell": ["lstm", "variational"] * 3,
    "embed_dim": [650, 650, 1500, 1500, 650, 650],
    "hidden_sizes": ["650 650", "650 650", "1500 1500", "1500 1500", "650 650", "650 650"],
    "output_layer": "full",
    "init_range": [0.05, 0.05, 0.04, 0.04, 0.05, 0.05],
    "init_biases": "zero",
    "rnn_biases": "one",
    "dropout_masks": ["standard", "locked"] * 3,
    "word_masks": [None, "row"] * 3,
    "dropout_embedding": [None, 0.2, None, 0.3, None, 0.2],
    **dict.fromkeys(["dropout_input", "dropout_hidden", "dropout_output"], [0.5, 0.35, 0.65, 0.5, 0.5, 0.35]),
    "dropout_recurrent": [None, 0.2, None, 0.3, None, 0.2],
    "dropout_weight": None,
}
BASE_TRAININGS = {
    "task": "stateful_lm",
    "optimizer": "sgd",
    "lr": 1.0,
    "clip-norm": [5, 5, 10, 10, 5, 5],
    "weight-decay": [None, 1e-7] * 3,
    "batch-size": 20,
    "tokens-per-sample": 35,
    "window-lengths": None,
    "max-epoch": [39, 39, 55, 55, 39, 39],
    "seed": [0, 0, 0, 2, 0, 0],
    "sentence-avg": True,
    "activation-regularization": None,
    "temporal-activation-regularization": None,
    **dict.fromkeys(["patience", "no-last-checkpoints"]),
}

# Zilly et al. 2017
HIGHWAYS = [f"{name}_{corpus}" for name in ("rhn_lm", "rhn_lm_tied") for corpus in ("ptb", "wt2")]
HIGHWAY_MODELS = {
    "rnn_cell": "rhn",
    "embed_dim": 890,
    "hidden_sizes": "890",
    "recurrence_depth": 8,
    "transform_input": "state",
    "transform_bias": -2.0,
    "init_range": 0.04,
    "init_biases": "zero",
    "dropout_masks": "locked",
    "word_masks": "row",
    "dropout_embedding": 0.25,
    "dropout_input": 0.75,
    "dropout_recurrent": 0.25,
    "dropout_output": 0.75,
    "output_layer": ["full", "full", "tied", "tied"],
}
HIGHWAY_TRAININGS = {
    "task": "stateful_lm",
    "optimizer": "sgd",
    "lr": 0.2,
    "clip-norm": 10,
    "weight-decay": 1e-7,
    "batch-size": 20,
    "tokens-per-sample": 35,
    "sentence-avg": True,
    "max-epoch": 200,
    "seed": 0,
    **dict.fromkeys(["window-lengths", "activation-regularization", "patience", "no-last-checkpoints"]),
}

# Takase et al. 2017
GATE_MODEL = {"output_gate": "iog", "gate_dim": 300, "gate_dropout": 0.5, "gate_init_range": 0.05}
GATE_TRAINING = {
    "task": "stateful_lm",
    "criterion": "regularized_cross_entropy",
    "optimizer": "l2_adam",
    "lr-scheduler": "fixed",
    "max-epoch": 5,
    "batch-size": 20,
    "tokens-per-sample": 35,
    "sentence-avg": True,
    "clip-norm": 1.0,
    "weight-decay": 1e-6,
    "adam-eps-added": "before-correction",
    **dict.fromkeys(["window-lengths", "adam-betas", "activation-regularization", "balance"]),
}

# Melis et al. 2020
MOGRIFIER_MODEL = {
    "rnn_cell": "mogrifier",
    "embed_dim": 912,
    "hidden_sizes": "912 912",
    "mogrifier_rounds": 5,
    "mogrifier_rank": 84,
    "output_layer": "tied",
    "dropout_masks": "standard",
    "dropout_carried_state": 0.01,
    "output_skip": "sum",
    "dropout_input": 0.729,
    "dropout_hidden": 0.291,
    "dropout_recurrent": 0.387,
    "dropout_output": 0.716,
}
MOGRIFIER_TRAINING = {
    "task": "stateful_lm",
    "optimizer": "l2_adam",
    "adam-betas": "(0.0, 0.999)",
    "adam-eps-added": "before-correction",
    "lr": 0.0023,
    "criterion": "regularized_cross_entropy",
    "sentence-avg": True,
    "l2-regularization": 2.52e-4,
    "clip-norm": 10,
    "batch-size": 64,
    "tokens-per-sample": 70,
    "weight-decay": None,
}

# Shuang et al. 2020, and Takase et al. 2018, section 5.2
MAJOR_MINOR_WT103 = {"dropout_hidden": 0.1, "dropout_output": 0.1, "dropout_weight": 0.15, "dropout_input": None}
MAJOR_MINOR_WT103_TRAINING = {
    "optimizer": "adam",
    "lr": 0.001,
    "tokens-per-sample": 70,
    "batch-size": 128,
    "max-epoch": 50,
}
LUONG = {
    "embed_dim": 1000,
    "hidden_sizes": "1000 1000 1000 1000",
    "encoder_directions": "forward",
    "attention": "general",
    "input_feeding": "on",
    "dropout": 0.2,
    "init_range": 0.1,
    "share_embeddings": "none",
    "output_layer": "full",
}
TRANSLATORS = [f"lstm_encdec{layer}_{corpus}" for corpus in ("iwslt", "gigaword") for layer in ("", "_mos", "_doc")]
TRANSLATOR_MODELS = {
    "rnn_cell": "lstm",
    "embed_dim": [500] * 3 + [400] * 3,
    "hidden_sizes": ["500 500"] * 3 + ["400 400"] * 3,
    "encoder_directions": "both",
    "encoder_merge": "top",
    "attention": "general",
    "input_feeding": "on",
    "dropout": 0.3,
    "share_embeddings": "none",
    "init_range": 0.1,
    "output_layer": ["full", "mos", "doc"] * 2,
    "experts_per_layer": [None, "0 0 0 2", "0 0 2 2"] * 2,
    "latent_dropout": [None, 0.0, 0.0] * 2,
    "expert_warmup": None,
}
SMALL_TRANSLATORS = ["lstm_encdec", "lstm_encdec_mos", "lstm_encdec_doc"]
TRANSLATOR_TRAININGS = {
    "optimizer": "adam",
    "clip-norm": 5,
    "lr-scheduler": "fixed",
    "lr-shrink": 0.5,
    "task": "translation",
    "criterion": "regularized_cross_entropy",
    "distributed-world-size": 1,
    "lr": [0.001] * 6 + [0.004] * 3,
    "batch-size": [256] * 6 + [64] * 3,
    "max-epoch": [15] * 6 + [5] * 3,
    "force-anneal": [10] * 6 + [4] * 3,
    "sentence-avg": [True] * 6 + [None] * 3,
    "rnn-biases": ["one"] * 6 + [None] * 3,
}

MODELS = {
    **columns(AVERAGED, AVERAGED_MODELS),
    **columns(BASES, BASE_MODELS),
    **columns(HIGHWAYS, HIGHWAY_MODELS),
    **dict.fromkeys(GATED_LANGUAGE_MODELS, GATE_MODEL),
    "mogrifier_lm_ptb": MOGRIFIER_MODEL,
    "mmlstm_lm_wt103": MAJOR_MINOR_WT103,
    "lstm_encdec_wmt14": LUONG,
    **columns(TRANSLATORS, TRANSLATOR_MODELS),
}
TRAININGS = {
    **columns(AVERAGED, AVERAGED_TRAININGS),
    **columns(BASES, BASE_TRAININGS),
    **columns(HIGHWAYS, HIGHWAY_TRAININGS),
    **dict.fromkeys(GATED_LANGUAGE_MODELS, GATE_TRAINING),
    "mogrifier_lm_ptb": MOGRIFIER_TRAINING,
    "mmlstm_lm_wt103": MAJOR_MINOR_WT103_TRAINING,
    **columns([*TRANSLATORS, *SMALL_TRANSLATORS], TRANSLATOR_TRAININGS),
    "lstm_lm_awd": {"lr": 20, "batch-size": 20, "max-epoch": 6, "window-lengths": "random", "seed": None},
}
WHOLE = {*HIGHWAYS, *GATED_LANGUAGE_MODELS, *TRANSLATORS, "mogrifier_lm_ptb"}
"""Presets whose models have no flags beside those of the table."""


@pytest.mark.parametrize("arch", sorted({*MODELS, *TRAININGS}))
def test_values_are_those_of_the_paper(arch):
    preset = PRESETS[arch]
    model, training = MODELS.get(arch, {}), TRAININGS.get(arch, {})
    assert {flag: preset.model.get(flag) for flag in model} == model
    assert {flag: preset.training.get(flag) for flag in training} == training
    assert arch not in WHOLE or set(preset.model) <= set(model)
    assert arch not in [*TRANSLATORS, *SMALL_TRANSLATORS] or set(preset.training) <= set(training)
    assert (preset.fine_tuning is None) or arch not in (*BASES, *HIGHWAYS, *GATED_LANGUAGE_MODELS)


@pytest.mark.parametrize("arch", AVERAGED)
def test_fine_tuning_is_that_of_the_paper(arch):
    expected, preset = columns(AVERAGED, AVERAGED_FINE_TUNINGS)[arch], LANGUAGE_MODELS[arch]
    found = {**preset.training, **preset.fine_tuning}
    assert {flag: found.get(flag) for flag in expected} == expected


# preset, the one that it starts from, what it changes of the model (None: anything) and of the training
MINORS = "0.9 0.9 0.6"
LONGER_MOS = {"nonmonotone-interval": 10, "max-epoch": 500}
CHANGES = [
    *(
        (f"lstm_lm_{layer}_{corpus}", f"lstm_lm_awd_{corpus}", None, training)
        for layer in ("bilinear", "dual", "drill")
        for corpus, training in (("ptb", {"max-epoch": 1000, "seed": 28}), ("wt2", {"max-epoch": 2000}))
    ),
    *(
        (
            f"lstm_lm_full_{corpus}",
            f"lstm_lm_awd_{corpus}",
            dict(hidden_sizes="1150 1150 1150", output_layer="full"),
            {},
        )
        for corpus in ("ptb", "wt2")
    ),
    *(
        (f"{name}", "lstm_lm_awd", None, {})
        for name in (
            *(f"lstm_lm_{n}" for n in ("full", "bilinear", "dual", "drill", "mos")),
            "mmlstm_lm",
            "mmlstm_lm_mos",
        )
    ),
    ("lstm_lm_doc", "lstm_lm_awd", None, {"balance": 0.001}),
    (
        *("mmlstm_lm_ptb", "lstm_lm_awd_ptb"),
        *(dict(rnn_cell="mmlstm", hidden_sizes="1240 1240 400", major_proportions="0.9"), {"max-epoch": 300}),
    ),
    (
        *("mmlstm_lm_wt2", "lstm_lm_awd_wt2"),
        *(dict(rnn_cell="mmlstm", hidden_sizes="1230 1230 400", major_proportions="0.9"), {"max-epoch": 300}),
    ),
    (
        *("mmlstm_lm_mos_ptb", "lstm_lm_mos_ptb"),
        dict(
            rnn_cell="mmlstm",
            hidden_sizes="1080 1080 620",
            major_proportions=MINORS,
            dropout_input=0.5,
            dropout_hidden=0.25,
        ),
        LONGER_MOS,
    ),
    (
        *("mmlstm_lm_mos_wt2", "lstm_lm_mos_wt2"),
        *(dict(rnn_cell="mmlstm", hidden_sizes="1200 1200 650", major_proportions=MINORS), {**LONGER_MOS, "lr": 20}),
    ),
    ("mmlstm_encdec", "lstm_encdec", dict(rnn_cell="mmlstm", major_proportions="0.7 0.9"), {}),
    (
        *("mmlstm_encdec_wmt14", "lstm_encdec_wmt14"),
        *(dict(rnn_cell="mmlstm", hidden_sizes="1070 1070 1070 1070", major_proportions="0.7 0.7 0.8 0.9"), {}),
    ),
    *(
        (f"transformer_{layer}{corpus}", f"transformer_full{corpus}", None, {})
        for corpus in ("", "_iwslt", "_wmt14")
        for layer in ("bilinear", "dual", "drill", "mos", "doc")
    ),
    *(
        (f"lstm_lm_{family}_{size}", f"lstm_lm_{family}_{size}_ptb", {}, None)
        for family in ("zaremba", "variational")
        for size in ("medium", "large")
    ),
]


@pytest.mark.parametrize("arch, base, model, training", CHANGES)
def test_presets_differ_from_those_they_start_from_as_in_the_papers(arch, base, model, training):
    ours, base = PRESETS[arch], PRESETS[base]
    if model is not None:
        changed = {flag: value for flag, value in ours.model.items() if base.model.get(flag) != value}
        assert changed == model and set(base.model) <= set(ours.model)
    assert ours.training == ({} if training is None else {**base.training, **training})
    assert "full" not in arch or ours.fine_tuning == base.fine_tuning


FAMILIES = [f"lstm_lm_{family}" for family in ("zaremba", "variational")]
COUNTS = [
    # preset, vocabulary, flags, parameters
    ("lstm_lm_awd_ptb", PTB, {}, 24_221_600),
    ("lstm_lm_awd_wt2", WT2, {}, 33_556_078),
    ("lstm_lm_full_ptb", PTB, {}, 43_827_600),
    ("lstm_lm_bilinear_ptb", PTB, {}, 24_381_600),
    ("lstm_lm_dual_ptb", PTB, {}, 24_542_400),
    ("lstm_lm_drill_ptb", PTB, {}, 24_863_200),
    ("lstm_lm_drill_wt2", WT2, {}, 34_197_678),
    ("lstm_lm_mos_ptb", PTB, {}, 21_500_620),
    ("lstm_lm_mos_wt2", WT2, {}, 34_909_528),
    ("lstm_lm_mos_ptb", PTB, {"experts_per_layer": "0 0 0 20"}, 22_373_120),
    ("lstm_lm_doc_ptb", PTB, {}, 22_849_120),
    ("lstm_lm_doc_wt2", WT2, {}, 36_639_278),
    ("lstm_lm_doc_ptb", 6_922, {}, 21_984_202),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "5 0 0 15"}, 21_897_120),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "0 5 0 15"}, 22_849_120),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "0 5 5 10"}, 23_325_120),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "5 0 5 10"}, 22_373_120),
    ("fpnn_lm_ptb", PTB, {"column_norm": 0.0}, 10_240_512),
    ("rectifier_rnn_lm_ptb", PTB, {"column_norm": 0.0}, 10_502_144),
    ("fpnn_lm_text8_words", TEXT8_WORDS, {"column_norm": 0.0}, 2 * TEXT8_WORDS * 512 + 512),
    ("rectifier_rnn_lm_text8_chars", TEXT8_CHARACTERS, {}, 2 * TEXT8_CHARACTERS * 2048 + 2048**2),
    ("skipping_rnn_lm_text8_chars", TEXT8_CHARACTERS, {}, 2 * TEXT8_CHARACTERS * 2048 + 2 * 2048**2),
    ("mmlstm_lm_mos_ptb", PTB, {}, 21_315_276),
    ("mmlstm_lm_mos_wt2", WT2, {}, 32_257_528),
    ("mmlstm_lm_ptb", PTB, {}, 24_211_856),
    ("mmlstm_lm_wt103", WT103, {}, 75_166_871),
    # other networks of Shuang et al. 2020
    ("mmlstm_lm_ptb", PTB, {"hidden_sizes": "1560 1560 400", "major_proportions": "0.5"}, 24_271_760),
    ("mmlstm_lm_ptb", PTB, {"hidden_sizes": AWD, "major_proportions": "1"}, 24_221_600),
    ("mmlstm_lm_wt2", WT2, {"hidden_sizes": AWD, "major_proportions": "1"}, 33_556_078),
    ("mmlstm_lm_wt103", WT103, {"hidden_sizes": "1024 256", "major_proportions": "1"}, 75_371_735),
    ("mmlstm_lm_mos_ptb", PTB, {"hidden_sizes": "972 972 372", "major_proportions": "1"}, 18_826_628),
    ("mmlstm_lm_mos_wt2", WT2, {"hidden_sizes": "1080 1080 390", "major_proportions": "1"}, 29_388_428),
    ("mmlstm_lm_mos_ptb", PTB, {"hidden_sizes": "1080 1080 620", "major_proportions": "1"}, 24_872_140),
    # two layers are as wide as 24 million parameters allow
    ("mogrifier_lm_ptb", PTB, {}, 23_986_480),
    ("mogrifier_lm_ptb", PTB, {"embed_dim": 913, "hidden_sizes": "913 913"}, 24_027_378),
    ("rhn_lm_ptb", PTB, {}, 32_082_040),
    ("rhn_lm_tied_ptb", PTB, {}, 23_182_040),
    ("rhn_lm_tied_wt2", WT2, {}, 43_922_738),
    *((f"{family}_medium_ptb", PTB, {}, 19_775_200) for family in FAMILIES),
    *((f"{family}_medium_wt2", WT2, {}, 50_059_878) for family in FAMILIES),
    *((f"{family}_large_ptb", PTB, {}, 66_022_000) for family in FAMILIES),
]


def on_meta(arch, source_size, vocab_size=None, **flags):
    """A model without memory; an encoder-decoder where there are two vocabularies."""
    with torch.device("meta"):
        if vocab_size is None:
            return build_lm(arch, source_size, **flags)
        return build_encdec(arch, source_size, vocab_size, **flags)


def count(model):
    return sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize("arch, vocab_size, flags, expected", COUNTS)
def test_parameter_count(arch, vocab_size, flags, expected):
    assert count(on_meta(arch, vocab_size, **flags)) == expected


@pytest.mark.parametrize("num_bases", [1, 2])
@pytest.mark.parametrize(
    "arch, vocab_size, gate, base",
    [("gated_lm_ptb", PTB, 6_010_000, 19_775_200), ("gated_lm_wt2", WT2, 20_000_078, 50_059_878)],
)
def test_parameter_count_of_a_gate(arch, vocab_size, gate, base, num_bases):
    """Table 2 has 20M and 26M; of an ensemble each member counts, and the gate once."""
    flags = {"arch": "lstm_lm_zaremba_medium_ptb", **LANGUAGE_MODELS["lstm_lm_zaremba_medium_ptb"].model}
    model = on_meta(arch, vocab_size, base_model_flags=[flags] * num_bases)
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad == learns) for learns in (True, False)]
    assert counts == [gate, num_bases * base]


def translator_by_hand(*, source_size, vocab_size, width, num_experts):
    """Parameters where embedding and hidden layers have one width and no matrix is shared (Takase et al. 2018)."""

    def lstm(num_inputs):
        return 4 * width * (num_inputs + width) + 8 * width

    embeddings = (source_size + vocab_size) * width
    recurrent = 2 * 2 * lstm(width) + lstm(width + width) + lstm(width)  # the decoder's first layer reads h~, too
    attention = width * width + width * 2 * width
    experts = num_experts * (width * width + width) + num_experts * width
    return embeddings + recurrent + attention + vocab_size * width + vocab_size + experts


@pytest.mark.parametrize(
    "arch, source_size, vocab_size, width, num_experts, expected",
    [
        ("lstm_encdec_iwslt", 12_000, 11_000, 500, 0, 30_785_000),
        ("lstm_encdec_mos_iwslt", 12_000, 11_000, 500, 2, 31_287_000),
        ("lstm_encdec_doc_iwslt", 12_000, 11_000, 500, 4, 31_789_000),
        ("lstm_encdec_gigaword", 5_000, 5_000, 400, 0, 14_824_200),
        ("lstm_encdec_mos_gigaword", 5_000, 5_000, 400, 2, 15_145_800),
        ("lstm_encdec_doc_gigaword", 5_000, 5_000, 400, 4, 15_467_400),
    ],
)
def test_parameter_count_of_a_translator(arch, source_size, vocab_size, width, num_experts, expected):
    by_hand = translator_by_hand(source_size=source_size, vocab_size=vocab_size, width=width, num_experts=num_experts)
    assert count(on_meta(arch, source_size, vocab_size)) == by_hand == expected


@pytest.mark.parametrize(
    "arch, width, sizes, millions",
    [
        ("lstm_encdec_wmt14", 1000, [(1000, 0)] * 4, 170.7),
        ("mmlstm_encdec_wmt14", 1070, [(749, 321), (749, 321), (856, 214), (963, 107)], 172.8),
    ],
)
def test_parameter_count_of_wmt14(arch, width, sizes, millions):
    """Table XI, with 33,200 words on either side; the paper's LSTMs have one bias vector, the library's two."""
    num_words, embed = 33_200, 1000

    def layers(first_inputs, num_biases):
        below, total = first_inputs, 0
        for major, minor in sizes:
            total += 4 * major * (below + major + num_biases) + 4 * minor * (first_inputs + minor + num_biases)
            below = width
        return total

    def total(num_biases):
        recurrent = layers(embed, num_biases) + layers(embed + width, num_biases)
        attention = width * width + width * 2 * width
        return 2 * num_words * embed + num_words * (width + 1) + recurrent + attention

    assert count(on_meta(arch, num_words, num_words)) == total(num_biases=2)
    assert round(total(num_biases=1) / 1e6, 1) == millions


# learning rates


def constant_then_falling(num_constant, divisor, start=1.0):
    return lambda epoch: start * divisor ** -max(0, epoch - num_constant)


RATES = {
    **{arch: constant_then_falling(*((6, 1.2) if "medium" in arch else (14, 1.15))) for arch in BASES},
    **{arch: constant_then_falling(20, 1.02, start=0.2) for arch in HIGHWAYS},
    **{arch: lambda epoch: 0.001 / epoch**0.5 for arch in GATED_LANGUAGE_MODELS},
}


@pytest.mark.parametrize("arch", RATES)
def test_the_rate_of_every_epoch_is_the_papers(arch):
    """As fairseq's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    training = PRESETS[arch].training
    command = ["data", f"--arch={arch}", *command_line(training)]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=command)
    optimizer = (L2Adam if arch in GATED_LANGUAGE_MODELS else FairseqSGD)(args, [torch.nn.Parameter(torch.zeros(1))])
    scheduler, epochs = build_lr_scheduler(args, optimizer), range(1, training["max-epoch"] + 1)
    rates = [scheduler.step_begin_epoch(epoch) for epoch in epochs]
    assert rates == pytest.approx([RATES[arch](epoch) for epoch in epochs], rel=1e-12)
    assert scheduler.step_update(1000) == rates[-1] and not optimizer.optimizer.defaults.get("momentum")


def test_wmt14_has_two_batches_an_update_and_twice_the_rate_of_vaswani_et_al_at_its_peak():
    training = TRANSFORMER_ARCHITECTURES["transformer_full_wmt14"].training
    expected = {"max-tokens": 4096, "update-freq": 2, "max-update": 350_000, "adam-betas": "(0.9, 0.998)"}
    expected |= {"warmup-updates": 8000, "warmup-init-lr": 0}
    assert expected.items() <= training.items()
    assert training["lr"] == pytest.approx(2 * (512 * training["warmup-updates"]) ** -0.5, rel=1e-5)
    common = {"label-smoothing": 0.1, "optimizer": "adam", "lr-scheduler": "inverse_sqrt", "task": "translation"}
    for corpus in ("", "_iwslt", "_wmt14"):
        training = TRANSFORMER_ARCHITECTURES[f"transformer_full{corpus}"].training
        assert common.items() <= training.items() and {"max-epoch", "max-update"} & set(training)


# presets as models have them


@pytest.mark.parametrize(
    "presets, model, size",
    [
        (LANGUAGE_MODELS, RecurrentLanguageModel, [50]),
        (ENCODER_DECODER_ARCHITECTURES, RecurrentEncoderDecoder, [30, 40]),
    ],
)
def test_presets_build_set_declared_flags_only_and_give_way_to_given_ones(presets, model, size):
    parser = ArgumentParser()
    model.add_args(parser)
    declared = {action.dest for action in parser._actions}
    for arch, preset in presets.items():
        assert set(preset.model) <= declared, arch
        on_meta(arch, *size)
        args = Namespace(embed_dim=7, dropout_output=0.0)
        apply_preset(preset, args)
        assert (args.embed_dim, args.dropout_output, args.hidden_sizes) == (7, 0.0, preset.model["hidden_sizes"])


def test_presets_reach_the_model():
    decoder = on_meta("lstm_lm_awd_ptb", 50).decoder
    rates = [decoder.embedding.word_dropout, decoder.input_dropout.rate, decoder.stack.layers[0].weight_dropout]
    assert rates == [0.1, 0.4, 0.5]
    assert on_meta("lstm_lm_doc_ptb", 50).decoder.output.latent_dropout.rate == 0.6
    model = on_meta("lstm_encdec_doc_iwslt", 30, 40)
    rates = [dropout.rate for dropout in (*model.decoder.stack.stack.dropouts, model.decoder.stack.dropout)]
    assert rates == [0.3] * 3
    assert [dropout.rate for part in model.encoder.stack.stacks for dropout in part.dropouts] == [0.3, 0.0] * 2
    assert model.decoder.output.experts_per_layer == [0, 0, 2, 2] and model.decoder.output.latent_dropout.rate == 0.0


SIMPLE = [arch for arch in LANGUAGE_MODELS if arch.startswith(("fpnn_lm", "rectifier_rnn_lm", "skipping_rnn_lm"))]


@pytest.mark.parametrize("arch", SIMPLE)
def test_nothing_stands_between_the_word_and_the_recurrence_and_words_have_no_biases(arch):
    preset = LANGUAGE_MODELS[arch].model
    assert preset["input_matrix"] == preset["output_bias"] == "off" and preset["output_layer"] == "full"
    assert str(preset["embed_dim"]) == preset["hidden_sizes"]
    if arch.endswith("_ptb"):  # half is dropped on the decoding side, with a mask for each prediction
        assert preset["column_norm"] > 0 and preset["hidden_sizes"] == "512" and preset["dropout_masks"] == "standard"
        rates = {name: value for name, value in preset.items() if name.startswith("dropout_")}
        assert {name: rate for name, rate in rates.items() if rate not in (0.0, "standard")} == {"dropout_output": 0.5}
    if arch.endswith("_text8_chars"):
        assert preset["hidden_sizes"] == "2048" and preset["dropout_output"] == 0.0
        assert LANGUAGE_MODELS[arch].training["clip-norm"] == 0


@torch.no_grad()  # no task holds the columns here
def test_the_recurrence_stays_clean():
    """With half of the outputs dropped, the state is that of the model without dropout."""
    model = build_lm("fpnn_lm_ptb", 23).double()
    tokens = torch.randint(4, 23, (2, 6))
    model.train()(tokens, stream="x")
    clean = model.eval()(tokens)[1]["states"].top[:, -1]
    (state,) = model.decoder.carried_state.get("x", 6)["layers"]
    torch.testing.assert_close(state["x"], clean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("arch", [arch for arch in SIMPLE if arch.endswith("_text8_chars")])
def test_networks_of_characters_leave_their_start(arch):
    """Of 26 characters, each of which is followed by one of two."""
    sizes = dict(embed_dim=64, hidden_sizes="64")
    sizes.update({"word_skip": "w0"} if "skipping" in arch else {"output_hidden_size": 64} if "fpnn" in arch else {})
    torch.manual_seed(1)
    model, training = build_lm(arch, 30, **sizes).train(), LANGUAGE_MODELS[arch].training
    assert training["optimizer"] == "adagrad"
    optimizer = torch.optim.Adagrad(model.parameters(), lr=training["lr"])
    steps = torch.randint(1, 3, (80, 16, 21)).cumsum(dim=2) % 26 + 4
    found = []
    for window in steps:
        optimizer.zero_grad()
        loss, _ = model(window[:, :-1], target=window[:, 1:])
        (loss / window[:, 1:].numel()).backward()
        optimizer.step()
        found.append(loss.item() / window[:, 1:].numel())
    assert found[0] == pytest.approx(math.log(30), abs=0.02) and found[-1] < 2.5


@pytest.mark.parametrize("arch", [arch for arch in SIMPLE if arch.startswith("skipping")])
def test_another_cell_with_the_skip_of_the_preset_has_its_slow_matrices_too(arch):
    for typed in ({}, {"word_skip": "_"}):
        args = Namespace(rnn_cell="diagonal", **typed)
        apply_preset(LANGUAGE_MODELS[arch], args)
        assert (args.word_skip, args.recurrent_scale) == ("_", LANGUAGE_MODELS[arch].model["recurrent_scale"])


@pytest.mark.parametrize("arch", sorted(GATED_LANGUAGE_MODELS))
def test_a_given_flag_beats_the_preset_and_another_gate_has_its_own_defaults(arch):
    flags = [tiny_base_flags("tied")]
    assert build_lm(arch, 23, base_model_flags=flags, gate_dim=7).decoder.gate.embedding.embedding_dim == 7
    gate = build_lm(arch, 23, base_model_flags=flags, gate_init_range=0.01).decoder.gate
    assert 0.009 < gate.linear.weight.abs().max() <= 0.01
    gate = build_lm(arch, 23, base_model_flags=flags, output_gate="iog-lstm").decoder.gate
    assert gate.embedding.embedding_dim == 300 and gate.dropout.rate == 0.5


@pytest.mark.parametrize("arch", HIGHWAYS)
@pytest.mark.parametrize("program, bias_of_gates", [({}, -2.0), ({"transform_bias": 0.0}, 0.0)])
def test_parameters_start_within_the_range_and_gates_at_the_published_bias(arch, program, bias_of_gates):
    model = build_lm(arch, 50, embed_dim=64, hidden_sizes="64", **program)
    (layer,) = model.decoder.stack.layers
    for bias in layer.biases():
        assert bias.tolist() == [0.0] * 64 + [bias_of_gates] * 64
    for name, param in model.named_parameters():
        if name.endswith("bias"):
            assert not param.any()
        else:
            assert 0.98 * 0.04 < param.abs().max() <= 0.04, name


@pytest.mark.parametrize("arch", ["rhn_lm", "rhn_lm_tied"])
def test_without_a_corpus_a_small_network_starts_from_the_published_bias_of_its_gates(arch):
    preset, model = LANGUAGE_MODELS[arch], build_lm(arch, 50)
    (layer,) = model.decoder.stack.layers
    assert preset.model["transform_input"] == "state" and preset.training["optimizer"] == "nt_asgd"
    assert all(torch.equal(bias, layer.start + micro.bias) for bias, micro in zip(layer.biases(), layer.micro_layers))
    assert set(layer.start.tolist()) == {0.0, -2.0}


@pytest.mark.parametrize("base", ["zaremba_medium", "zaremba_large", "variational_medium", "variational_large"])
def test_a_base_model_has_one_bias_a_layer_and_starts_within_its_range_with_biases_at_zero(base):
    preset = LANGUAGE_MODELS[f"lstm_lm_{base}"].model
    model = build_lm(f"lstm_lm_{base}", 50, embed_dim=64, hidden_sizes="64 64")
    biases = {name for name, param in model.named_parameters() if param.dim() == 1}
    layers = ("stack.layers.0.bias_ih_l0", "stack.layers.1.bias_ih_l0", "output.projection.bias")
    assert biases == {f"decoder.{name}" for name in layers}
    for name, param in model.named_parameters():
        if name in biases:
            assert not param.any()
        else:
            assert 0.98 * preset["init_range"] < param.abs().max() <= preset["init_range"], name
    assert model.decoder.output.projection.weight is not model.decoder.embedding.weight


def test_a_translator_of_the_paper_starts_all_parameters_within_a_tenth():
    for name, param in build_encdec("lstm_encdec_doc_gigaword", 30, 40).named_parameters():
        assert param.abs().max() <= 0.1, name
        assert param.numel() < 100 or param.abs().max() > 0.09, name


@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
def test_a_small_encoder_decoder_drops_values_once_right_before_every_softmax(cell):
    for flags, of_latents, of_states in (
        ({"arch": f"{cell}_encdec"}, None, 0.3),
        ({"arch": f"{cell}_encdec_doc"}, 0.3, 0.0),
        ({"arch": "lstm_encdec_mos", "rnn_cell": cell}, 0.3, 0.0),
        ({"arch": f"{cell}_encdec", "output_layer": "mos"}, 0.3, 0.0),
        ({"arch": f"{cell}_encdec_doc", "output_layer": "full"}, None, 0.3),
        ({"arch": f"{cell}_encdec_doc", "dropout_output": 0.1, "latent_dropout": 0.2}, 0.2, 0.1),
        ({"arch": "lstm_encdec_doc_iwslt", "rnn_cell": cell}, 0.0, 0.3),
        ({"arch": "lstm_encdec_iwslt", "rnn_cell": cell, "output_layer": "doc"}, 0.3, 0.3),
    ):
        decoder = on_meta(flags.pop("arch"), 30, 40, **flags).decoder
        assert decoder.stack.dropout.rate == decoder.stack.stack.dropouts[-1].rate == of_states, flags
        latent = getattr(decoder.output, "latent_dropout", None)
        assert (None if latent is None else latent.rate) == of_latents, flags


def test_small_attentions_under_one_softmax_have_no_matrix_and_all_others_have_one():
    cases = [(arch, {}) for arch in ENCODER_DECODER_ARCHITECTURES]
    cases += [("lstm_encdec", {"output_layer": "doc"}), ("lstm_encdec_doc", {"output_layer": "full"})]
    cases += [("lstm_encdec_doc", {"attention": "dot"})]
    found = [
        (arch, *flags.values(), type(on_meta(arch, 30, 40, **flags).decoder.stack.attention)) for arch, flags in cases
    ]
    without = [tuple(names) for *names, kind in found if kind is DotAttention]
    assert without == [("lstm_encdec",), ("mmlstm_encdec",), ("lstm_encdec_doc", "full"), ("lstm_encdec_doc", "dot")]
    assert {kind for *_, kind in found} == {DotAttention, GeneralAttention}


@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
def test_docs_attention_is_learned_first_wherever_a_small_encoder_decoder_has_doc(cell):
    for flags, expected in (
        ({"arch": f"{cell}_encdec_doc"}, 1000),
        ({"arch": f"{cell}_encdec", "output_layer": "doc"}, 1000),
        ({"arch": "lstm_encdec_mos", "rnn_cell": cell, "output_layer": "doc"}, 1000),
        ({"arch": f"{cell}_encdec", "output_layer": "doc", "expert_warmup": 0}, 0),
        ({"arch": "lstm_encdec_doc_iwslt", "rnn_cell": cell}, 0),
        ({"arch": "lstm_encdec_iwslt", "rnn_cell": cell, "output_layer": "doc"}, 0),
    ):
        assert on_meta(flags.pop("arch"), 30, 40, **flags).decoder.output.expert_warmup == expected, flags


def test_the_small_output_layers_differ_in_their_output_layer_only():
    full, *others = (ENCODER_DECODER_ARCHITECTURES[arch].model for arch in ("lstm_encdec", *SMALL_TRANSLATORS[1:]))
    for other in others:
        changed = {flag for flag, value in other.items() if full.get(flag) != value}
        own = {"output_layer", "experts_per_layer", "latent_dropout"}
        assert own <= changed <= own | {"attention", "expert_warmup", "dropout_output"}


@pytest.mark.parametrize(
    "arch", ["lstm_encdec_iwslt", "lstm_encdec_doc_gigaword", "lstm_encdec_wmt14", "mmlstm_encdec_wmt14"]
)
def test_published_trainings_have_one_bias_vector(arch):
    def biases(**flags):
        model = build_encdec(arch, 9, 9, embed_dim=8, hidden_sizes="16 16 16 16" if "wmt" in arch else "8 8", **flags)
        return {name.rpartition(".")[2][:7] for name, _ in model.named_parameters() if ".bias_" in name}

    assert ENCODER_DECODER_ARCHITECTURES[arch].training["rnn-biases"] == "one"
    assert biases(rnn_biases="one") == {"bias_ih"} and biases() == {"bias_ih", "bias_hh"}
