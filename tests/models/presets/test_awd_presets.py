"""Presets of AWD-LSTM with mixtures or one softmax against the papers: parameter counts and hyper-parameters."""

import pytest
import torch
from paper_tables import PTB, WT2, cells

from fairseq_plugins.models.presets import LANGUAGE_MODELS

COUNTS = [
    # architecture, vocabulary, experts per layer, parameters
    ("lstm_lm_awd_ptb", PTB, None, 24_221_600),
    ("lstm_lm_awd_wt2", WT2, None, 33_556_078),
    ("lstm_lm_full_ptb", PTB, None, 43_827_600),
    ("lstm_lm_bilinear_ptb", PTB, None, 24_381_600),
    ("lstm_lm_dual_ptb", PTB, None, 24_542_400),
    ("lstm_lm_drill_ptb", PTB, None, 24_863_200),
    ("lstm_lm_drill_wt2", WT2, None, 34_197_678),
    ("lstm_lm_mos_ptb", PTB, None, 21_500_620),
    ("lstm_lm_mos_wt2", WT2, None, 34_909_528),
    ("lstm_lm_mos_ptb", PTB, "0 0 0 20", 22_373_120),
    ("lstm_lm_doc_ptb", PTB, None, 22_849_120),
    ("lstm_lm_doc_wt2", WT2, None, 36_639_278),
    ("lstm_lm_doc_ptb", 6_922, None, 21_984_202),
    ("lstm_lm_doc_ptb", PTB, "0 0 5 15", 22_849_120),
    ("lstm_lm_doc_ptb", PTB, "5 0 0 15", 21_897_120),
    ("lstm_lm_doc_ptb", PTB, "0 5 0 15", 22_849_120),
    ("lstm_lm_doc_ptb", PTB, "0 5 5 10", 23_325_120),
    ("lstm_lm_doc_ptb", PTB, "5 0 5 10", 22_373_120),
]

# a column each: Merity et al. 2018, Yang et al. 2018, Takase et al. 2018, with the values of their programs
COLUMNS = ["awd_ptb", "awd_wt2", "mos_ptb", "mos_wt2", "doc_ptb", "doc_wt2"]
AWD_WIDTHS, PTB_WIDTHS, WT2_WIDTHS = "1150 1150 400", "960 960 620", "1150 1150 650"
MODEL = {
    "embed_dim": [400, 400, 280, 300, 280, 300],
    "hidden_sizes": [AWD_WIDTHS, AWD_WIDTHS, PTB_WIDTHS, WT2_WIDTHS, PTB_WIDTHS, WT2_WIDTHS],
    "dropout_embedding": [0.1] * 6,
    "dropout_input": [0.4, 0.65, 0.4, 0.55, 0.4, 0.55],
    "dropout_hidden": [0.25, 0.2, 0.225, 0.2, 0.225, 0.2],
    "dropout_output": [0.4] * 6,
    "latent_dropout": [None, None, 0.29, 0.29, 0.6, 0.6],
    "dropout_weight": [0.5] * 6,
    "output_layer": ["tied", "tied", "mos", "mos", "doc", "doc"],
    "experts_per_layer": [None, None, "0 0 0 15", "0 0 0 15", "0 0 5 15", "0 0 5 15"],
    "rnn_cell": ["lstm"] * 6,
}
TRAINING = {
    "lr": [30, 30, 20, 15, 20, 15],
    "batch-size": [20, 80, 12, 15, 12, 15],
    "row-groups": [None, None, None, 3, None, 3],
    "activation-regularization": [2] * 6,
    "temporal-activation-regularization": [1] * 6,
    "weight-decay": [1.2e-6] * 6,
    "clip-norm": [0.25] * 6,
    "nonmonotone-interval": [5, 5, 5, 5, 60, 60],
    "max-epoch": [500, 750, 1000, 1000, 500, 500],
    "seed": [141, 1882, 28, 1882, 28, 1882],
    "balance": [None, None, None, None, 0.001, 0.001],
    "tokens-per-sample": [70] * 6,
    "window-lengths": ["random"] * 6,
    "max-window": [None, None, 70 + 40, 70 + 20, 70 + 40, 70 + 20],
    "batch-size-valid": [10] * 6,
}
FINE_TUNING = {
    "lr": [30, 30, 25, 20, 20, 15],
    "max-window": [80, 80, 70 + 40, 70 + 20, 70 + 40, 70 + 20],
    "nonmonotone-interval": [5, 5, 5, 5, 60, 60],
    "balance": [None, None, None, None, 0.001, 0.001],
}


@pytest.mark.parametrize("arch, vocab_size, experts, expected", COUNTS)
def test_parameter_count(arch, vocab_size, experts, expected, build_lm):
    flags = {} if experts is None else {"experts_per_layer": experts}
    with torch.device("meta"):
        model = build_lm(arch, vocab_size, **flags)
    assert sum(param.numel() for param in model.parameters()) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(MODEL, COLUMNS))
def test_model_flag(arch, flag, expected):
    assert LANGUAGE_MODELS[arch].model.get(flag) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(TRAINING, COLUMNS))
def test_training_flag(arch, flag, expected):
    assert LANGUAGE_MODELS[arch].training.get(flag) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(FINE_TUNING, COLUMNS))
def test_fine_tuning_flag(arch, flag, expected):
    preset = LANGUAGE_MODELS[arch]
    assert {**preset.training, **preset.fine_tuning}.get(flag) == expected


@pytest.mark.parametrize("layer", ["bilinear", "dual", "drill"])
def test_training_of_label_layers_is_that_of_awd_but_longer(layer):
    for corpus, expected in (("ptb", {"max-epoch": 1000, "seed": 28}), ("wt2", {"max-epoch": 2000})):
        training = LANGUAGE_MODELS[f"lstm_lm_awd_{corpus}"].training
        assert LANGUAGE_MODELS[f"lstm_lm_{layer}_{corpus}"].training == {**training, **expected}


@pytest.mark.parametrize("corpus", ["ptb", "wt2"])
def test_the_full_softmax_is_trained_as_awd_with_a_last_layer_as_wide_as_the_others(corpus):
    full, awd = LANGUAGE_MODELS[f"lstm_lm_full_{corpus}"], LANGUAGE_MODELS[f"lstm_lm_awd_{corpus}"]
    changed = {flag: value for flag, value in full.model.items() if awd.model[flag] != value}
    assert changed == {"hidden_sizes": "1150 1150 1150", "output_layer": "full"}
    assert (full.training, full.fine_tuning) == (awd.training, awd.fine_tuning)


@pytest.mark.parametrize(
    "arch, flags",
    [
        ("lstm_lm_awd_ptb", {"dropout_embedding": 0.1, "dropout_input": 0.4, "dropout_weight": 0.5}),
        ("lstm_lm_doc_ptb", {"latent_dropout": 0.6}),
    ],
)
def test_presets_reach_the_model(arch, flags, build_lm):
    with torch.device("meta"):
        decoder = build_lm(arch, 50).decoder
    found = {
        "dropout_embedding": decoder.embedding.word_dropout,
        "dropout_input": decoder.input_dropout.rate,
        "dropout_weight": decoder.stack.layers[0].weight_dropout,
    }
    if arch.startswith("lstm_lm_doc"):
        found["latent_dropout"] = decoder.output.latent_dropout.rate
    assert {flag: found[flag] for flag in flags} == flags


def test_small_architectures_are_trained_alike_and_doc_has_its_balance():
    names = ["lstm_lm_awd", "lstm_lm_full", "lstm_lm_bilinear", "lstm_lm_dual", "lstm_lm_drill", "lstm_lm_mos"]
    awd = LANGUAGE_MODELS["lstm_lm_awd"].training
    assert {"lr": 20, "batch-size": 20, "max-epoch": 6, "window-lengths": "random"}.items() <= awd.items()
    assert "balance" not in awd and "seed" not in awd
    assert all(LANGUAGE_MODELS[name].training == awd for name in (*names, "mmlstm_lm", "mmlstm_lm_mos"))
    assert LANGUAGE_MODELS["lstm_lm_doc"].training == {**awd, "balance": 0.001}
