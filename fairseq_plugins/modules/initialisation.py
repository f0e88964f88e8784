"""Start of a model's parameters."""

import torch
from torch import nn

BIASES = ("uniform", "zero")
"""How biases start under ``--init-range``: like all parameters, or at zero."""


@torch.no_grad()
def initialise_uniformly(model: nn.Module, init_range: float, *, biases: str) -> None:
    """Draw all parameters from U(-init_range, init_range); vectors, which are biases, as ``biases`` says."""
    assert biases in BIASES
    for parameter in model.parameters():
        if parameter.dim() == 1 and biases == "zero":
            parameter.zero_()
        else:
            parameter.uniform_(-init_range, init_range)
