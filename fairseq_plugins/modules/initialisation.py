"""Initialisation of a model's parameters."""

import torch
from torch import nn

from fairseq_plugins.options import choices

BIASES = ("uniform", "zero")
"""Initial biases under ``--init-range``: like all parameters, or zero."""

InitBiases = choices(BIASES)


@torch.no_grad()
def initialise_uniformly(model: nn.Module, init_range: float, *, biases: str) -> None:
    """Draw all parameters from U(-init_range, init_range). ``biases``, "uniform" or "zero", concerns all vectors."""
    assert biases in BIASES
    for parameter in model.parameters():
        if parameter.dim() == 1 and biases == "zero":
            parameter.zero_()
        else:
            parameter.uniform_(-init_range, init_range)
