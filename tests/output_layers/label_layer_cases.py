"""Layers with label encoders for the tests, and their states."""

from functools import partial

import torch
from builders import build_random_output_layer, make_states

V = 101
WIDTHS = [8, 12, 8]
RATE = 0.6
TARGET = torch.arange(12).view(3, 4) * 7
DRILL_LABELS = dict(label_encoder="drill", latent_dropout=0.0)
WITH_LABEL_NETWORK = [
    ("dual", {}),
    ("drill", {}),
    ("drill", dict(label_hidden_network="on")),
    ("mos", DRILL_LABELS),
    ("doc", DRILL_LABELS),
]
"""Layers with a network of the labels, and their flags."""

build = partial(build_random_output_layer, widths=WIDTHS, vocab_size=V)


def draw_states(widths=WIDTHS, dtype=torch.float64):
    """States that take gradients."""
    states = make_states(widths, dtype=dtype)
    for h in states.layers:
        h.requires_grad_()
    return states
