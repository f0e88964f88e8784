"""Presets against the papers: parameter counts and hyper-parameters."""

import argparse
from argparse import Namespace

import pytest
import torch
from fairseq import options
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.sgd import SGD as FairseqSGD
from fairseq_plugins.models.recurrent_lm_presets import ARCHITECTURES

from fairseq_plugins.models.presets import apply_preset, command_line
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel

PTB, WT2, WT103 = 10_000, 33_278, 267_735

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
    ("mmlstm_lm_mos_ptb", PTB, None, 21_315_276),
    ("mmlstm_lm_mos_wt2", WT2, None, 32_257_528),
    ("mmlstm_lm_ptb", PTB, None, 24_211_856),
    ("mmlstm_lm_wt103", WT103, None, 75_166_871),
    *((f"lstm_lm_{family}_medium_ptb", PTB, None, 19_775_200) for family in ("zaremba", "variational")),
    *((f"lstm_lm_{family}_medium_wt2", WT2, None, 50_059_878) for family in ("zaremba", "variational")),
    *((f"lstm_lm_{family}_large_ptb", PTB, None, 66_022_000) for family in ("zaremba", "variational")),
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

# the base models of Takase et al. 2017
BASES = [
    "zaremba_medium_ptb",
    "zaremba_large_ptb",
    "variational_medium_ptb",
    "variational_large_ptb",
    "zaremba_medium_wt2",
    "variational_medium_wt2",
]
MEDIUM_WIDTHS, LARGE_WIDTHS = "650 650", "1500 1500"
BASE_MODEL = {
    "rnn_cell": ["lstm", "lstm", "variational", "variational", "lstm", "variational"],
    "embed_dim": [650, 1500, 650, 1500, 650, 650],
    "hidden_sizes": [MEDIUM_WIDTHS, LARGE_WIDTHS, MEDIUM_WIDTHS, LARGE_WIDTHS, MEDIUM_WIDTHS, MEDIUM_WIDTHS],
    "output_layer": ["full"] * 6,
    "init_range": [0.05, 0.04, 0.05, 0.04, 0.05, 0.05],
    "init_biases": ["zero"] * 6,
    "rnn_biases": ["one"] * 6,
    "dropout_masks": ["standard", "standard", "locked", "locked", "standard", "locked"],
    "word_masks": [None, None, "row", "row", None, "row"],
    "dropout_embedding": [None, None, 0.2, 0.3, None, 0.2],
    "dropout_input": [0.5, 0.65, 0.35, 0.5, 0.5, 0.35],
    "dropout_hidden": [0.5, 0.65, 0.35, 0.5, 0.5, 0.35],
    "dropout_recurrent": [None, None, 0.2, 0.3, None, 0.2],
    "dropout_output": [0.5, 0.65, 0.35, 0.5, 0.5, 0.35],
    "dropout_weight": [None] * 6,
}
BASE_TRAINING = {
    "task": ["stateful_lm"] * 6,
    "optimizer": ["sgd"] * 6,
    "lr": [1.0] * 6,
    "clip-norm": [5, 10, 5, 10, 5, 5],
    "weight-decay": [None, None, 1e-7, 1e-7, None, 1e-7],
    "batch-size": [20] * 6,
    "tokens-per-sample": [35] * 6,
    "window-lengths": [None] * 6,
    "max-epoch": [39, 55, 39, 55, 39, 39],
    "seed": [0, 0, 0, 2, 0, 0],
    "sentence-avg": [True] * 6,
    "activation-regularization": [None] * 6,
    "temporal-activation-regularization": [None] * 6,
}
CONSTANT_EPOCHS = {"medium": (6, 1.2), "large": (14, 1.15)}

every_architecture = pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
every_trainable = pytest.mark.parametrize("arch", sorted(name for name, p in ARCHITECTURES.items() if p.training))


def cells(table, columns=COLUMNS):
    return [
        pytest.param(f"lstm_lm_{column}", name, row[i], id=f"{column}-{name}")
        for name, row in table.items()
        for i, column in enumerate(columns)
    ]


@pytest.mark.parametrize("arch, vocab_size, experts, expected", COUNTS)
def test_parameter_count(arch, vocab_size, experts, expected, build_lm):
    flags = {} if experts is None else {"experts_per_layer": experts}
    with torch.device("meta"):
        model = build_lm(arch, vocab_size, **flags)
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
    model, base = ARCHITECTURES[arch].model, ARCHITECTURES[base].model
    changed = {flag: value for flag, value in model.items() if base.get(flag) != value}
    assert changed == {"rnn_cell": "mmlstm", **expected} and set(base) <= set(model)


def test_training_of_major_minor_models_is_that_of_the_paper():
    trainings = {name: preset.training for name, preset in ARCHITECTURES.items()}
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
    rates = {name: value for name, value in ARCHITECTURES["mmlstm_lm_wt103"].model.items() if "dropout" in name}
    assert rates == {"dropout_hidden": 0.1, "dropout_output": 0.1, "dropout_weight": 0.15}


@pytest.mark.parametrize("arch, flag, expected", cells(MODEL) + cells(BASE_MODEL, BASES))
def test_model_flag(arch, flag, expected):
    assert ARCHITECTURES[arch].model.get(flag) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(TRAINING) + cells(BASE_TRAINING, BASES))
def test_training_flag(arch, flag, expected):
    assert ARCHITECTURES[arch].training.get(flag) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(FINE_TUNING))
def test_fine_tuning_flag(arch, flag, expected):
    preset = ARCHITECTURES[arch]
    assert {**preset.training, **preset.fine_tuning}.get(flag) == expected


@pytest.mark.parametrize("layer", ["bilinear", "dual", "drill"])
def test_training_of_label_layers_is_that_of_awd_but_longer(layer):
    for corpus, expected in (("ptb", {"max-epoch": 1000, "seed": 28}), ("wt2", {"max-epoch": 2000})):
        training = ARCHITECTURES[f"lstm_lm_awd_{corpus}"].training
        assert ARCHITECTURES[f"lstm_lm_{layer}_{corpus}"].training == {**training, **expected}


@pytest.mark.parametrize("corpus", ["ptb", "wt2"])
def test_the_full_softmax_is_trained_as_awd_with_a_last_layer_as_wide_as_the_others(corpus):
    full, awd = ARCHITECTURES[f"lstm_lm_full_{corpus}"], ARCHITECTURES[f"lstm_lm_awd_{corpus}"]
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


# the base models of Takase et al. 2017


@pytest.mark.parametrize("base", BASES)
def test_the_rate_of_a_base_model_is_constant_and_then_falls_every_epoch(base):
    """As the host's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    flags = ARCHITECTURES[f"lstm_lm_{base}"].training
    command = ["data", f"--arch=lstm_lm_{base}", *command_line(flags)]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=command)
    optimizer = FairseqSGD(args, [torch.nn.Parameter(torch.zeros(1))])
    scheduler = build_lr_scheduler(args, optimizer)
    rates = [scheduler.step_begin_epoch(epoch) for epoch in range(1, flags["max-epoch"] + 1)]
    num_constant, divisor = CONSTANT_EPOCHS[base.split("_")[1]]
    expected = [divisor ** -max(0, epoch - num_constant) for epoch in range(1, len(rates) + 1)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[num_constant - 1] == 1.0 > rates[num_constant]
    assert scheduler.step_update(1000) == rates[-1]
    assert not optimizer.optimizer.defaults["momentum"]


@pytest.mark.parametrize("size", ["medium", "large"])
@pytest.mark.parametrize("family", ["zaremba", "variational"])
def test_a_base_model_without_a_corpus_has_the_same_network(family, size):
    assert ARCHITECTURES[f"lstm_lm_{family}_{size}"].model == ARCHITECTURES[f"lstm_lm_{family}_{size}_ptb"].model
    assert not ARCHITECTURES[f"lstm_lm_{family}_{size}"].training


def test_base_models_are_not_fine_tuned_and_keep_their_last_epoch():
    for base in BASES:
        preset = ARCHITECTURES[f"lstm_lm_{base}"]
        assert preset.fine_tuning is None and not {"patience", "no-last-checkpoints"} & set(preset.training)


@pytest.mark.parametrize("base", ["zaremba_medium", "zaremba_large", "variational_medium", "variational_large"])
def test_a_base_model_has_one_bias_a_layer_and_starts_within_its_range_with_biases_at_zero(base, build_lm):
    preset = ARCHITECTURES[f"lstm_lm_{base}"].model
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


@every_architecture
def test_a_given_flag_beats_the_preset(arch):
    args = Namespace(embed_dim=7, dropout_output=0.0)
    apply_preset(ARCHITECTURES[arch], args)
    assert args.embed_dim == 7 and args.dropout_output == 0.0
    assert args.hidden_sizes == ARCHITECTURES[arch].model["hidden_sizes"]


@every_architecture
def test_every_preset_builds_and_sets_declared_flags_only(arch, build_lm):
    parser = argparse.ArgumentParser()
    RecurrentLanguageModel.add_args(parser)
    assert set(ARCHITECTURES[arch].model) <= {action.dest for action in parser._actions}
    with torch.device("meta"):
        build_lm(arch, 50)


@every_trainable
def test_the_host_accepts_every_training_flag_with_its_value(arch):
    preset = ARCHITECTURES[arch]
    commands = [preset.training]
    if preset.fine_tuning is not None:
        commands.append({**preset.training, **preset.fine_tuning, "averaging": "immediate"})
    for flags in commands:
        command = ["data", f"--arch={arch}", *command_line(flags)]
        args = vars(options.parse_args_and_arch(options.get_training_parser(), input_args=command))
        (args["lr"],) = args["lr"]
        # the host reads --batch-size-valid, whose default is another flag's value, as text
        assert {name: type(value)(args[name.replace("-", "_")]) for name, value in flags.items()} == flags
        assert {flag: args[flag] for flag in preset.model} == preset.model
