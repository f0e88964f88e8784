"""What holds for the presets of all language models."""

import argparse
import math
import operator
import sys
from argparse import Namespace
from functools import partial

import plain_formulas
import pytest
import torch
from builders import build_model, make_task, tiny_base_flags
from fairseq import options, utils
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.sgd import SGD as FairseqSGD
from fairseq_cli.train import cli_main
from forks import in_fork
from paper_tables import PTB, WT2, WT103, cells
from short_trainings import OLDER, ROOT

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, apply_preset, command_line
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel, StreamDecoder
from fairseq_plugins.modules import layers as layers_module
from fairseq_plugins.optim.adaptive import L2Adam

every_architecture = pytest.mark.parametrize("arch", sorted(LANGUAGE_MODELS))


@every_architecture
def test_a_given_flag_beats_the_preset(arch):
    args = Namespace(embed_dim=7, dropout_output=0.0)
    apply_preset(LANGUAGE_MODELS[arch], args)
    assert args.embed_dim == 7 and args.dropout_output == 0.0
    assert args.hidden_sizes == LANGUAGE_MODELS[arch].model["hidden_sizes"]


@every_architecture
def test_every_preset_builds_and_sets_declared_flags_only(arch, build_lm):
    parser = argparse.ArgumentParser()
    RecurrentLanguageModel.add_args(parser)
    assert set(LANGUAGE_MODELS[arch].model) <= {action.dest for action in parser._actions}
    with torch.device("meta"):
        build_lm(arch, 50)


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


TEXT8_WORDS, TEXT8_CHARACTERS = 67_428, 27
FAMILIES = ("fpnn_lm", "rectifier_rnn_lm", "skipping_rnn_lm")
ARCHITECTURES = [arch for arch in LANGUAGE_MODELS if arch.startswith(FAMILIES)]

SKIPPING = [arch for arch in ARCHITECTURES if arch.startswith("skipping")]

fpnn_presets_every_architecture = pytest.mark.parametrize("arch", ARCHITECTURES)


@pytest.mark.parametrize(
    "arch, vocab_size, expected",
    [
        ("fpnn_lm_ptb", PTB, 10_240_512),
        ("rectifier_rnn_lm_ptb", PTB, 10_502_144),
        ("fpnn_lm_text8_words", TEXT8_WORDS, 2 * TEXT8_WORDS * 512 + 512),
        ("rectifier_rnn_lm_text8_chars", TEXT8_CHARACTERS, 2 * TEXT8_CHARACTERS * 2048 + 2048**2),
        ("skipping_rnn_lm_text8_chars", TEXT8_CHARACTERS, 2 * TEXT8_CHARACTERS * 2048 + 2 * 2048**2),
    ],
)
def test_fpnn_presets_parameter_count(arch, vocab_size, expected):
    with torch.device("meta"):
        model = build_model(arch, make_task(vocab_size), column_norm=0.0)
    assert sum(param.numel() for param in model.parameters()) == expected


@fpnn_presets_every_architecture
def test_nothing_stands_between_the_word_and_the_recurrence_and_words_have_no_biases(arch):
    preset = LANGUAGE_MODELS[arch].model
    assert preset["input_matrix"] == preset["output_bias"] == "off" and preset["output_layer"] == "full"
    assert str(preset["embed_dim"]) == preset["hidden_sizes"]


@pytest.mark.parametrize("arch", ["fpnn_lm_ptb", "rectifier_rnn_lm_ptb"])
def test_half_is_dropped_on_the_decoding_side_with_a_mask_for_each_prediction(arch):
    preset = LANGUAGE_MODELS[arch].model
    assert (preset["dropout_output"], preset["dropout_masks"]) == (0.5, "standard")
    assert preset["column_norm"] > 0 and preset["hidden_sizes"] == "512"
    dropped = {name for name, value in preset.items() if name.startswith("dropout_") and value not in (0.0, "standard")}
    assert dropped == {"dropout_output"}


@torch.no_grad()  # no task holds the columns here
def test_the_recurrence_stays_clean():
    """With half of the outputs dropped, the state is that of the model without dropout."""
    model = build_model("fpnn_lm_ptb", make_task(23)).double()
    tokens = torch.randint(4, 23, (2, 6))
    model.train()(tokens, stream="x")
    clean = model.eval()(tokens)[1]["states"].top[:, -1]
    (state,) = model.decoder.carried_state.get("x", 6)["layers"]
    torch.testing.assert_close(state["x"], clean, rtol=1e-12, atol=1e-12)


def test_characters_have_the_published_width_and_no_dropout():
    for arch in ARCHITECTURES:
        preset = LANGUAGE_MODELS[arch]
        if arch.endswith("_text8_chars"):
            assert preset.model["hidden_sizes"] == "2048" and preset.model["dropout_output"] == 0.0
            assert preset.training["clip-norm"] == 0


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch.endswith("_text8_chars")])
def test_networks_of_characters_leave_their_start(arch):
    """Of 26 characters, each of which is followed by one of two."""
    sizes = dict(embed_dim=64, hidden_sizes="64")
    sizes.update({"word_skip": "w0"} if "skipping" in arch else {"output_hidden_size": 64} if "fpnn" in arch else {})
    torch.manual_seed(1)
    model, training = build_model(arch, make_task(30), **sizes).train(), LANGUAGE_MODELS[arch].training
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


@pytest.mark.parametrize("arch", SKIPPING)
@pytest.mark.parametrize("typed", [{}, {"word_skip": "_"}])
def test_another_cell_with_the_skip_of_the_preset_has_its_slow_matrices_too(arch, typed):
    args = Namespace(rnn_cell="diagonal", **typed)
    apply_preset(LANGUAGE_MODELS[arch], args)
    assert (args.word_skip, args.recurrent_scale) == ("_", LANGUAGE_MODELS[arch].model["recurrent_scale"])


GATED_PRESETS_TRAINING = {
    "task": "stateful_lm",
    "criterion": "regularized_cross_entropy",
    "optimizer": "l2_adam",
    "lr-scheduler": "fixed",
    "max-epoch": 5,
    "batch-size": 20,
    "tokens-per-sample": 35,
    "window-lengths": None,
    "sentence-avg": True,
    "clip-norm": 1.0,
    "weight-decay": 1e-6,
    "adam-betas": None,
    "adam-eps-added": "before-correction",
    "activation-regularization": None,
    "balance": None,
}
MEDIUM = {PTB: 19_775_200, WT2: 50_059_878}
GATE = {PTB: 6_010_000, WT2: 20_000_078}

gated_presets_every_architecture = pytest.mark.parametrize("arch", sorted(GATED_LANGUAGE_MODELS))


def base_flags(arch):
    return {"arch": arch, **LANGUAGE_MODELS[arch].model}


@pytest.mark.parametrize("arch, vocab_size", [("gated_lm_ptb", PTB), ("gated_lm_wt2", WT2)])
@pytest.mark.parametrize("num_bases", [1, 2])
def test_gated_presets_parameter_count(arch, vocab_size, num_bases, build_lm):
    """Table 2 has 20M and 26M; of an ensemble each member counts, and the gate once."""
    flags = [base_flags("lstm_lm_zaremba_medium_ptb")] * num_bases
    with torch.device("meta"):
        model = build_lm(arch, vocab_size, base_model_flags=flags)
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad == learns) for learns in (True, False)]
    assert counts == [GATE[vocab_size], num_bases * MEDIUM[vocab_size]]


@gated_presets_every_architecture
def test_settings_are_the_papers(arch):
    preset = GATED_LANGUAGE_MODELS[arch]
    assert preset.model == {"output_gate": "iog", "gate_dim": 300, "gate_dropout": 0.5, "gate_init_range": 0.05}
    assert {flag: preset.training.get(flag) for flag in GATED_PRESETS_TRAINING} == GATED_PRESETS_TRAINING
    assert preset.fine_tuning is None


@gated_presets_every_architecture
def test_the_rate_falls_with_the_root_of_the_epoch(arch):
    """As fairseq's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    command = ["data", f"--arch={arch}", *command_line(GATED_LANGUAGE_MODELS[arch].training)]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=command)
    scheduler = build_lr_scheduler(args, L2Adam(args, [torch.nn.Parameter(torch.zeros(1))]))
    rates = [scheduler.step_begin_epoch(epoch) for epoch in range(1, 6)]
    assert rates == pytest.approx([0.001 / epoch**0.5 for epoch in range(1, 6)], rel=1e-12)
    assert scheduler.step_update(1000) == rates[-1]


@gated_presets_every_architecture
def test_a_given_flag_beats_the_preset_and_another_gate_has_its_own_defaults(arch, build_lm):
    flags = [tiny_base_flags("tied")]
    assert build_lm(arch, 23, base_model_flags=flags, gate_dim=7).decoder.gate.embedding.embedding_dim == 7
    gate = build_lm(arch, 23, base_model_flags=flags, gate_init_range=0.01).decoder.gate
    assert 0.009 < gate.linear.weight.abs().max() <= 0.01
    gate = build_lm(arch, 23, base_model_flags=flags, output_gate="iog-lstm").decoder.gate
    assert gate.embedding.embedding_dim == 300 and gate.dropout.rate == 0.5


MAJOR_MINOR_PRESETS_COUNTS = [
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


@pytest.mark.parametrize("arch, vocab_size, expected", MAJOR_MINOR_PRESETS_COUNTS)
def test_major_minor_presets_parameter_count(arch, vocab_size, expected, build_lm):
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


NETWORK = {
    "rnn_cell": "mogrifier",
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
MOGRIFIER_PRESETS_TRAINING = {
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
}


def test_network_and_training_for_penn_treebank():
    preset = LANGUAGE_MODELS["mogrifier_lm_ptb"]
    assert NETWORK.items() <= preset.model.items() and MOGRIFIER_PRESETS_TRAINING.items() <= preset.training.items()
    assert "weight-decay" not in preset.training
    assert set(preset.model) - set(NETWORK) == {"embed_dim", "hidden_sizes"}


def test_two_layers_are_as_wide_as_24_million_parameters_allow(build_lm):
    counts = []
    for width in (912, 913):
        with torch.device("meta"):
            model = build_lm("mogrifier_lm_ptb", PTB, embed_dim=width, hidden_sizes=f"{width} {width}")
        counts.append(sum(param.numel() for param in model.parameters()))
    assert counts == [23_986_480, 24_027_378]
    assert LANGUAGE_MODELS["mogrifier_lm_ptb"].model["hidden_sizes"] == "912 912"


# a training of the preset, small, against the program's formulas

SMALL = {"embed-dim": 8, "hidden-sizes": "8 8", "mogrifier-rank": 3, "dropout-carried-state": 0.4}
ROWS, STEPS, CLIP, NUM_UPDATES = 4, 10, 1.0, 4
LR, BETA, EPS, L2 = 0.0023, 0.999, 1e-8, 2.52e-4


class Reference:
    """What the program does with a window, in plain formulas; it keeps its own weights, moments and state."""

    def __init__(self, weights):
        self.weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        self.moments = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.state = [(torch.zeros(ROWS, 8), torch.zeros(ROWS, 8))] * 2
        self.num_updates = 0

    def layer(self, n, x, state, mask):
        own = partial(
            operator.getitem, {name.removeprefix(f"stack.layers.{n}."): w for name, w in self.weights.items()}
        )
        factors = [f"rounds.{i}.factors" for i in range(5)]
        rounds = [(own(f"{f}.1.weight") @ own(f"{f}.0.weight"), own(f"{f}.1.bias")) for f in factors]
        matrices = own("input.weight"), own("recurrent.weight"), own("input.bias")
        return plain_formulas.mogrifier(x, *state, rounds, *matrices, mask=mask)

    def loss(self, tokens, target, masks, dropped):
        """Mean over the rows of the sum over the steps, and the L2 penalty."""
        into, state_1, between, state_2, out = masks
        states = [tuple(part.masked_fill(dropped.unsqueeze(1), 0) for part in state) for state in self.state]
        embedding, bias = self.weights["embedding.weight"], self.weights["output.projection.bias"]
        first, *after_1 = self.layer(0, embedding[tokens] * into, states[0], state_1)
        second, *after_2 = self.layer(1, first * between, states[1], state_2)
        self.state = [tuple(part.detach() for part in after) for after in (after_1, after_2)]
        log_probs = torch.log(plain_formulas.softmax(((first + second) * out) @ embedding.T + bias))
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).sum() / ROWS
        return nll, nll + L2 * sum((w**2).sum() for w in self.weights.values()) / 2

    def gradients(self, loss):
        """Clipped together, the penalty's with the loss's."""
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        return dict(zip(self.weights, [gradient * min(1.0, CLIP / norm.item()) for gradient in gradients])), norm

    def update(self, gradients):
        """RMSProp that corrects the start of its second moment and adds epsilon before that."""
        self.num_updates += 1
        correction = (1 - BETA**self.num_updates) ** 0.5
        for name, weight in self.weights.items():
            self.moments[name] = BETA * self.moments[name] + (1 - BETA) * gradients[name] ** 2
            with torch.no_grad():
                weight -= LR * correction * gradients[name] / (self.moments[name].sqrt() + EPS)


def test_windows_of_a_training_are_those_of_the_programs_formulas(tmp_path):
    """Loss, gradients and update of windows that carry their state, with the masks that were drawn."""
    drawn, dropped, windows = [], [], []
    draw, drop = layers_module.dropout_mask, StreamDecoder._drop_rows
    forward, step = RegularizedCrossEntropy.forward, L2Adam.step

    def spy_on_masks(*args, **options):
        drawn.append(draw(*args, **options))
        return drawn[-1]

    def spy_on_states(self, state):
        kept = drop(self, state)
        dropped.append((kept["layers"][0]["h"] == 0).all(dim=1))
        return kept

    def check_window(self, model, sample, *args, **options):
        weights = dict(model.decoder.named_parameters())
        if not windows:
            windows.append(Reference({name: weight.detach() for name, weight in weights.items()}))
        drawn.clear()
        result = forward(self, model, sample, *args, **options)
        (reference,) = windows
        torch.testing.assert_close(dict(weights), reference.weights, rtol=1e-9, atol=1e-11)
        rows = torch.zeros(ROWS, dtype=torch.bool) if reference.num_updates == 0 else dropped[-1]
        nll, reference.window = reference.loss(sample["net_input"]["src_tokens"], sample["target"], drawn, rows)
        torch.testing.assert_close(result[0].detach() / ROWS, reference.window.detach(), rtol=1e-9, atol=0)
        torch.testing.assert_close(result[2]["loss"] / ROWS, nll.detach(), rtol=1e-9, atol=0)
        return result

    def check_step(self, *args, **options):
        (reference,) = windows
        expected, norm = reference.gradients(reference.window)
        assert norm > CLIP
        for weight, gradient in zip(self.params, expected.values()):
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-6, atol=1e-9)  # the norm is taken with 1e-6 more
            gradient.copy_(weight.grad)
        reference.update(expected)
        return step(self, *args, **options)

    def work():
        torch.set_default_dtype(torch.float64)
        utils.clip_grad_norm_ = lambda weights, max_norm, _: torch.nn.utils.clip_grad_norm_(weights, max_norm)
        layers_module.dropout_mask, StreamDecoder._drop_rows = spy_on_masks, spy_on_states
        RegularizedCrossEntropy.forward, L2Adam.step = check_window, check_step
        training = {**LANGUAGE_MODELS["mogrifier_lm_ptb"].training, **SMALL, "arch": "mogrifier_lm_ptb"}
        training.update({"batch-size": ROWS, "tokens-per-sample": STEPS, "clip-norm": CLIP, "max-update": NUM_UPDATES})
        sys.argv = ["fairseq-train", str(OLDER / "data/lm"), "--user-dir", str(ROOT / "fairseq_plugins"), "--cpu"]
        sys.argv += [*command_line(training), "--no-save", "--disable-validation", "--num-workers", "0"]
        sys.argv += ["--save-dir", str(tmp_path / "trained")]
        cli_main()
        (reference,) = windows
        assert reference.num_updates == NUM_UPDATES and any(rows.any() for rows in dropped)

    ended = in_fork(work, folder=tmp_path)
    assert ended.status == 0, ended.err[-3000:]


RHN_PRESETS_COUNTS = [
    # architecture, vocabulary, parameters
    ("rhn_lm_ptb", PTB, 32_082_040),
    ("rhn_lm_tied_ptb", PTB, 23_182_040),
    ("rhn_lm_tied_wt2", WT2, 43_922_738),
]
PUBLISHED = [f"{name}_{corpus}" for name in ("rhn_lm", "rhn_lm_tied") for corpus in ("ptb", "wt2")]
RHN_PRESETS_NETWORK = {
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
}
RHN_PRESETS_TRAINING = {
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
}

every_published = pytest.mark.parametrize("arch", PUBLISHED)


@pytest.mark.parametrize("arch, vocab_size, expected", RHN_PRESETS_COUNTS)
def test_rhn_presets_parameter_count(arch, vocab_size, expected, build_lm):
    with torch.device("meta"):
        model = build_lm(arch, vocab_size)
    assert sum(param.numel() for param in model.parameters()) == expected


@every_published
def test_network_and_training(arch):
    preset = LANGUAGE_MODELS[arch]
    assert preset.model == {**RHN_PRESETS_NETWORK, "output_layer": "tied" if "tied" in arch else "full"}
    assert RHN_PRESETS_TRAINING.items() <= preset.training.items() and preset.fine_tuning is None
    assert not {"window-lengths", "activation-regularization", "patience", "no-last-checkpoints"} & set(preset.training)


@every_published
def test_the_rate_is_constant_for_20_epochs_and_then_falls_every_epoch(arch):
    """As fairseq's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    flags = LANGUAGE_MODELS[arch].training
    args = options.parse_args_and_arch(
        options.get_training_parser(), input_args=["data", f"--arch={arch}", *command_line(flags)]
    )
    scheduler = build_lr_scheduler(args, FairseqSGD(args, [torch.nn.Parameter(torch.zeros(1))]))
    rates = [scheduler.step_begin_epoch(epoch) for epoch in range(1, 201)]
    expected = [0.2 * 1.02 ** -max(0, epoch - 20) for epoch in range(1, 201)]
    assert rates == pytest.approx(expected, rel=1e-12) and rates[19] == 0.2 > rates[20]


@every_published
@pytest.mark.parametrize("program, bias_of_gates", [({}, -2.0), ({"transform_bias": 0.0}, 0.0)])
def test_parameters_start_within_the_range_and_gates_at_the_published_bias(arch, program, bias_of_gates, build_lm):
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
def test_without_a_corpus_a_small_network_starts_from_the_published_bias_of_its_gates(arch, build_lm):
    preset, model = LANGUAGE_MODELS[arch], build_lm(arch, 50)
    (layer,) = model.decoder.stack.layers
    assert preset.model["transform_input"] == "state" and preset.training["optimizer"] == "nt_asgd"
    assert all(torch.equal(bias, layer.start + micro.bias) for bias, micro in zip(layer.biases(), layer.micro_layers))
    assert set(layer.start.tolist()) == {0.0, -2.0}


ZAREMBA_PRESETS_COUNTS = [
    # architecture, vocabulary, parameters
    *((f"lstm_lm_{family}_medium_ptb", PTB, 19_775_200) for family in ("zaremba", "variational")),
    *((f"lstm_lm_{family}_medium_wt2", WT2, 50_059_878) for family in ("zaremba", "variational")),
    *((f"lstm_lm_{family}_large_ptb", PTB, 66_022_000) for family in ("zaremba", "variational")),
]
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


@pytest.mark.parametrize("arch, vocab_size, expected", ZAREMBA_PRESETS_COUNTS)
def test_zaremba_presets_parameter_count(arch, vocab_size, expected, build_lm):
    with torch.device("meta"):
        model = build_lm(arch, vocab_size)
    assert sum(param.numel() for param in model.parameters()) == expected


@pytest.mark.parametrize("base", BASES)
def test_the_rate_of_a_base_model_is_constant_and_then_falls_every_epoch(base):
    """As fairseq's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    flags = LANGUAGE_MODELS[f"lstm_lm_{base}"].training
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
    assert LANGUAGE_MODELS[f"lstm_lm_{family}_{size}"].model == LANGUAGE_MODELS[f"lstm_lm_{family}_{size}_ptb"].model
    assert not LANGUAGE_MODELS[f"lstm_lm_{family}_{size}"].training


def test_base_models_are_not_fine_tuned_and_keep_their_last_epoch():
    for base in BASES:
        preset = LANGUAGE_MODELS[f"lstm_lm_{base}"]
        assert preset.fine_tuning is None and not {"patience", "no-last-checkpoints"} & set(preset.training)


@pytest.mark.parametrize("base", ["zaremba_medium", "zaremba_large", "variational_medium", "variational_large"])
def test_a_base_model_has_one_bias_a_layer_and_starts_within_its_range_with_biases_at_zero(base, build_lm):
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
