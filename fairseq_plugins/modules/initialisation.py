"""Initialisation of a model's parameters."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn

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


@torch.no_grad()
def initialise_by_layer(model: nn.Module, *, embedding_std: float) -> None:
    """Draw every parameter by its purpose.

    Recurrent matrices are orthogonal (Saxe et al. 2014). Other matrices are uniform with unit gain (Glorot & Bengio
    2010). The matrices of the gates of a layer are drawn separately. Biases are zero, those of forget gates 1
    (Jozefowicz et al. 2015). Embeddings and the matrices tied to them are normal. Modules with exceptions have
    a method ``reset_by_layer``, which redraws their parameters.

    Args:
        model: any.
        embedding_std: standard deviation of the embeddings.
    """
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.zero_()
        else:
            glorot_uniform_(parameter)
    for module in model.modules():
        reset: Optional[Callable[[], None]] = getattr(module, "reset_by_layer", None)
        if reset is not None:
            reset()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0, embedding_std)


def glorot_uniform_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw each matrix stacked in the rows of ``weight`` from U(-a, a), a^2 = 6 / (rows + columns)."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.xavier_uniform_(matrix)


def orthogonal_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw each matrix stacked in the rows of ``weight`` as an orthogonal one."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.orthogonal_(matrix)
