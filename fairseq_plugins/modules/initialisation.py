"""Start of a model's parameters."""

import torch
from torch import Tensor, nn

from fairseq_plugins.flags.choices import choices

STARTS = ("uniform", "by-layer")
"""How a model's parameters start: all from one range, or each matrix by its shape and what it is for."""

BIASES = ("uniform", "zero")
"""How biases start under ``--init-range``: like all parameters, or at zero."""


BiasStart = choices(BIASES)


class StartsByLayer:
    """Base of modules with recurrent or stacked matrices, or with biases that do not start at zero."""

    def start_by_layer(self) -> None:
        """Draw those of its own parameters; all parameters of the model have their common start by then."""
        raise NotImplementedError


@torch.no_grad()
def initialise_uniformly(model: nn.Module, init_range: float, *, biases: str) -> None:
    """Draw all parameters from U(-init_range, init_range); vectors, which are biases, as ``biases`` says."""
    assert biases in BIASES
    for parameter in model.parameters():
        if parameter.dim() == 1 and biases == "zero":
            parameter.zero_()
        else:
            parameter.uniform_(-init_range, init_range)


@torch.no_grad()
def initialise_by_layer(model: nn.Module, *, embedding_std: float) -> None:
    """Draw all parameters by what they are for.

    Recurrent matrices are orthogonal (Saxe et al. 2014), other matrices uniform with unit gain (Glorot & Bengio 2010),
    each gate for itself. Biases are zero, those of forget gates 1 (Jozefowicz et al. 2015). Embeddings, with what
    shares them, are normal. What a module starts in another way is its :meth:`StartsByLayer.start_by_layer`.

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
        if isinstance(module, StartsByLayer):
            module.start_by_layer()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0, embedding_std)


def glorot_uniform_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw matrices that are stacked in the rows of ``weight``, each from U(-a, a), a^2 = 6 / (rows + columns)."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.xavier_uniform_(matrix)


def orthogonal_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw orthogonal matrices that are stacked in the rows of ``weight``."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.orthogonal_(matrix)
