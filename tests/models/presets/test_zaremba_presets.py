"""Presets of the base models of Takase et al. 2017 against the paper: parameter counts and hyper-parameters."""

import pytest
import torch
from fairseq import options
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.sgd import SGD as FairseqSGD
from paper_tables import PTB, WT2, cells

from fairseq_plugins.models.presets import LANGUAGE_MODELS, command_line

COUNTS = [
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


@pytest.mark.parametrize("arch, vocab_size, expected", COUNTS)
def test_parameter_count(arch, vocab_size, expected, build_lm):
    with torch.device("meta"):
        model = build_lm(arch, vocab_size)
    assert sum(param.numel() for param in model.parameters()) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(BASE_MODEL, BASES))
def test_model_flag(arch, flag, expected):
    assert LANGUAGE_MODELS[arch].model.get(flag) == expected


@pytest.mark.parametrize("arch, flag, expected", cells(BASE_TRAINING, BASES))
def test_training_flag(arch, flag, expected):
    assert LANGUAGE_MODELS[arch].training.get(flag) == expected


@pytest.mark.parametrize("base", BASES)
def test_the_rate_of_a_base_model_is_constant_and_then_falls_every_epoch(base):
    """As the host's scheduler, from the flags of the preset, sets it at the start of each epoch."""
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
