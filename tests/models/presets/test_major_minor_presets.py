"""Presets of the Major-Minor LSTM against Shuang et al. 2020: parameter counts and hyper-parameters."""

import pytest
import torch
from paper_tables import PTB, WT2, WT103

from fairseq_plugins.models.presets import LANGUAGE_MODELS

COUNTS = [
    # architecture, vocabulary, parameters
    ("mmlstm_lm_mos_ptb", PTB, 21_315_276),
    ("mmlstm_lm_mos_wt2", WT2, 32_257_528),
    ("mmlstm_lm_ptb", PTB, 24_211_856),
    ("mmlstm_lm_wt103", WT103, 75_166_871),
]

MAJOR_MINOR_COUNTS = [
    # other networks of Shuang et al. 2020, by flags
    ("mmlstm_lm_ptb", PTB, "1560 1560 400", "0.5", 24_271_760),
    ("mmlstm_lm_ptb", PTB, "1150 1150 400", "1", 24_221_600),
    ("mmlstm_lm_wt2", WT2, "1150 1150 400", "1", 33_556_078),
    ("mmlstm_lm_wt103", WT103, "1024 256", "1", 75_371_735),
    ("mmlstm_lm_mos_ptb", PTB, "972 972 372", "1", 18_826_628),
    ("mmlstm_lm_mos_wt2", WT2, "1080 1080 390", "1", 29_388_428),
    ("mmlstm_lm_mos_ptb", PTB, "1080 1080 620", "1", 24_872_140),
]


@pytest.mark.parametrize("arch, vocab_size, expected", COUNTS)
def test_parameter_count(arch, vocab_size, expected, build_lm):
    with torch.device("meta"):
        model = build_lm(arch, vocab_size)
    assert sum(param.numel() for param in model.parameters()) == expected


@pytest.mark.parametrize("arch, vocab_size, hidden_sizes, proportions, expected", MAJOR_MINOR_COUNTS)
def test_parameter_count_of_other_major_minor_networks(arch, vocab_size, hidden_sizes, proportions, expected, build_lm):
    with torch.device("meta"):
        model = build_lm(arch, vocab_size, hidden_sizes=hidden_sizes, major_proportions=proportions)
    assert sum(param.numel() for param in model.parameters()) == expected


@pytest.mark.parametrize(
    "arch, base, expected",
    [
        ("mmlstm_lm_ptb", "lstm_lm_awd_ptb", dict(hidden_sizes="1240 1240 400", major_proportions="0.9")),
        ("mmlstm_lm_wt2", "lstm_lm_awd_wt2", dict(hidden_sizes="1230 1230 400", major_proportions="0.9")),
        (
            "mmlstm_lm_mos_ptb",
            "lstm_lm_mos_ptb",
            dict(hidden_sizes="1080 1080 620", major_proportions="0.9 0.9 0.6", dropout_input=0.5, dropout_hidden=0.25),
        ),
        ("mmlstm_lm_mos_wt2", "lstm_lm_mos_wt2", dict(hidden_sizes="1200 1200 650", major_proportions="0.9 0.9 0.6")),
    ],
)
def test_major_minor_models_differ_from_their_baselines_as_in_the_paper(arch, base, expected):
    model, base = LANGUAGE_MODELS[arch].model, LANGUAGE_MODELS[base].model
    changed = {flag: value for flag, value in model.items() if base.get(flag) != value}
    assert changed == {"rnn_cell": "mmlstm", **expected} and set(base) <= set(model)


def test_training_of_major_minor_models_is_that_of_the_paper():
    trainings = {name: preset.training for name, preset in LANGUAGE_MODELS.items()}
    changes = {
        ("mmlstm_lm_ptb", "lstm_lm_awd_ptb"): {"max-epoch": 300},
        ("mmlstm_lm_wt2", "lstm_lm_awd_wt2"): {"max-epoch": 300},
        ("mmlstm_lm_mos_ptb", "lstm_lm_mos_ptb"): {"nonmonotone-interval": 10, "max-epoch": 500},
        ("mmlstm_lm_mos_wt2", "lstm_lm_mos_wt2"): {"nonmonotone-interval": 10, "max-epoch": 500, "lr": 20},
    }
    for (arch, base), expected in changes.items():
        assert trainings[arch] == {**trainings[base], **expected}
    wt103 = {"optimizer": "adam", "lr": 0.001, "tokens-per-sample": 70, "batch-size": 128, "max-epoch": 50}
    assert wt103.items() <= trainings["mmlstm_lm_wt103"].items()
    rates = {name: value for name, value in LANGUAGE_MODELS["mmlstm_lm_wt103"].model.items() if "dropout" in name}
    assert rates == {"dropout_hidden": 0.1, "dropout_output": 0.1, "dropout_weight": 0.15}
