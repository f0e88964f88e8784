"""Presets of recurrent highway networks against Takase et al. 2017: parameter counts and hyper-parameters."""

import pytest
import torch
from fairseq import options
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.sgd import SGD as FairseqSGD
from paper_tables import PTB, WT2

from fairseq_plugins.models.presets import LANGUAGE_MODELS, command_line

COUNTS = [
    # architecture, vocabulary, parameters
    ("rhn_lm_ptb", PTB, 32_082_040),
    ("rhn_lm_tied_ptb", PTB, 23_182_040),
    ("rhn_lm_tied_wt2", WT2, 43_922_738),
]
PUBLISHED = [f"{name}_{corpus}" for name in ("rhn_lm", "rhn_lm_tied") for corpus in ("ptb", "wt2")]
NETWORK = {
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
TRAINING = {
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


@pytest.mark.parametrize("arch, vocab_size, expected", COUNTS)
def test_parameter_count(arch, vocab_size, expected, build_lm):
    with torch.device("meta"):
        model = build_lm(arch, vocab_size)
    assert sum(param.numel() for param in model.parameters()) == expected


@every_published
def test_network_and_training(arch):
    preset = LANGUAGE_MODELS[arch]
    assert preset.model == {**NETWORK, "output_layer": "tied" if "tied" in arch else "full"}
    assert TRAINING.items() <= preset.training.items() and preset.fine_tuning is None
    assert not {"window-lengths", "activation-regularization", "patience", "no-last-checkpoints"} & set(preset.training)


@every_published
def test_the_rate_is_constant_for_20_epochs_and_then_falls_every_epoch(arch):
    """As the host's scheduler, from the flags of the preset, sets it at the start of each epoch."""
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
