"""Presets of the gated language models against the paper and its program: parameter counts and hyper-parameters."""

import pytest
import torch
from builders import tiny_base_flags
from fairseq import options
from fairseq.optim.lr_scheduler import build_lr_scheduler
from paper_tables import PTB, WT2

from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, command_line
from fairseq_plugins.optim.l2_adam import L2Adam

TRAINING = {
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

every_architecture = pytest.mark.parametrize("arch", sorted(GATED_LANGUAGE_MODELS))


def base_flags(arch):
    return {"arch": arch, **LANGUAGE_MODELS[arch].model}


@pytest.mark.parametrize("arch, vocab_size", [("gated_lm_ptb", PTB), ("gated_lm_wt2", WT2)])
@pytest.mark.parametrize("num_bases", [1, 2])
def test_parameter_count(arch, vocab_size, num_bases, build_lm):
    """Table 2 has 20M and 26M; of an ensemble each member counts, and the gate once."""
    flags = [base_flags("lstm_lm_zaremba_medium_ptb")] * num_bases
    with torch.device("meta"):
        model = build_lm(arch, vocab_size, base_model_flags=flags)
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad == learns) for learns in (True, False)]
    assert counts == [GATE[vocab_size], num_bases * MEDIUM[vocab_size]]


@every_architecture
def test_settings_are_the_papers(arch):
    preset = GATED_LANGUAGE_MODELS[arch]
    assert preset.model == {"output_gate": "iog", "gate_dim": 300, "gate_dropout": 0.5, "gate_init_range": 0.05}
    assert {flag: preset.training.get(flag) for flag in TRAINING} == TRAINING
    assert preset.fine_tuning is None


@every_architecture
def test_the_rate_falls_with_the_root_of_the_epoch(arch):
    """As the host's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    command = ["data", f"--arch={arch}", *command_line(GATED_LANGUAGE_MODELS[arch].training)]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=command)
    scheduler = build_lr_scheduler(args, L2Adam(args, [torch.nn.Parameter(torch.zeros(1))]))
    rates = [scheduler.step_begin_epoch(epoch) for epoch in range(1, 6)]
    assert rates == pytest.approx([0.001 / epoch**0.5 for epoch in range(1, 6)], rel=1e-12)
    assert scheduler.step_update(1000) == rates[-1]


@every_architecture
def test_a_given_flag_beats_the_preset_and_another_gate_has_its_own_defaults(arch, build_lm):
    flags = [tiny_base_flags("tied")]
    assert build_lm(arch, 23, base_model_flags=flags, gate_dim=7).decoder.gate.embedding.embedding_dim == 7
    gate = build_lm(arch, 23, base_model_flags=flags, gate_init_range=0.01).decoder.gate
    assert 0.009 < gate.linear.weight.abs().max() <= 0.01
    gate = build_lm(arch, 23, base_model_flags=flags, output_gate="iog-lstm").decoder.gate
    assert gate.embedding.embedding_dim == 300 and gate.dropout.rate == 0.5
