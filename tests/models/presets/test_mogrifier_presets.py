"""Presets of Mogrifier LSTMs against Melis et al. 2020."""

import torch
from paper_tables import PTB

from fairseq_plugins.models.presets import LANGUAGE_MODELS

NETWORK = {
    "rnn_cell": "mogrifier",
    "mogrifier_rounds": 5,
    "mogrifier_rank": 84,
    "output_layer": "tied",
    "dropout_masks": "locked",
    "dropout_input": 0.729,
    "dropout_hidden": 0.291,
    "dropout_recurrent": 0.387,
    "dropout_output": 0.716,
}
TRAINING = {
    "task": "stateful_lm",
    "optimizer": "l2_adam",
    "adam-betas": "(0.0, 0.999)",
    "lr": 0.0023,
    "weight-decay": 2.5e-4,
    "batch-size": 64,
    "tokens-per-sample": 70,
}


def test_network_and_training_for_penn_treebank():
    preset = LANGUAGE_MODELS["mogrifier_lm_ptb"]
    assert NETWORK.items() <= preset.model.items() and TRAINING.items() <= preset.training.items()
    assert set(preset.model) - set(NETWORK) == {"embed_dim", "hidden_sizes"}


def test_two_layers_have_about_24_million_parameters(build_lm):
    with torch.device("meta"):
        model = build_lm("mogrifier_lm_ptb", PTB)
    assert len(model.decoder.stack.layers) == 2
    assert round(sum(param.numel() for param in model.parameters()) / 1e6, 1) == 24.0
