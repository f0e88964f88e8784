"""The column norm constraint of ``--column-norm`` (Pachitariu & Sahani 2013, for rectifier networks and the FPNN).

All columns of the embedding and of the output matrix have the same Euclidean length, at first and after every update. A
column holds all weights into a hidden unit, or all out of it.

Shapes: V words, D width.
"""

from typing import Any, Dict, Iterable, Optional

import torch
from fairseq.optim import AMPOptimizer, FairseqOptimizer, FP16Optimizer
from torch import Tensor, nn

from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.options import UserError

TOLERANCE = 1e-2
"""Relative tolerance by which constrained columns are recognised by their length, in 16-bit weights too."""


@torch.no_grad()
def normalise_columns_(weight: Tensor, length: float) -> None:
    """Scale the columns of a matrix (V, D) to a length above zero. A column of zeros stays as it is."""
    lengths = _column_lengths(weight)
    weight.div_(torch.where(lengths > 0, lengths / length, 1))


def _column_lengths(weight: Tensor) -> Tensor:
    """Euclidean lengths (D) of the columns of a matrix (V, D), in float32 or wider."""
    return weight.to(accumulation_dtype(weight)).square().sum(dim=0).sqrt()


def column_norm(weight: Tensor) -> Optional[float]:
    """The length that the columns of a weight are constrained to, or None."""
    return getattr(weight, "column_norm", None)


def constrain_columns(model: nn.Module, weights: Iterable[Tensor], *, length: float, task: object) -> None:
    """Constrain matrices (V, D) of a model.

    Any task may evaluate the model. Training is refused unless the task ``applies_column_norm`` after every update, by
    :func:`apply_column_norm`.
    """
    for weight in dict.fromkeys(weights):  # both are one if embeddings are tied
        normalise_columns_(weight.data, length)
        vars(weight)["column_norm"] = length
    if not getattr(task, "applies_column_norm", False):
        model.register_forward_pre_hook(_refuse_training)


def _refuse_training(model: nn.Module, _: Any) -> None:
    if model.training and torch.is_grad_enabled():
        raise UserError("--column-norm needs --task stateful_lm, which applies it after every update")


def apply_column_norm(optimizer: FairseqOptimizer) -> None:
    """Rescale the constrained columns to their length after an update.

    With ``--fp16`` and ``--bf16`` the optimiser updates 32-bit copies. These are rescaled, and the model's weights are
    copied from them, because rescaled 16-bit weights would be overwritten at the next update.

    Raises:
        UserError: if the optimiser holds all weights in one vector, as fairseq's does with ``--fp16``.
    """
    wrapped = optimizer.fp32_optimizer if isinstance(optimizer, AMPOptimizer) else optimizer
    if not isinstance(wrapped, FP16Optimizer):
        for weight in wrapped.params:
            if (length := column_norm(weight)) is not None:
                normalise_columns_(weight.data, length)
        return
    for n, weight in enumerate(wrapped.fp16_params):
        if (length := column_norm(weight)) is not None:
            if wrapped.has_flat_params:
                raise UserError(
                    "--column-norm finds no columns in the one vector of --fp16: add --fp16-no-flatten-grads"
                )
            normalise_columns_(wrapped.fp32_params[n].data, length)
            weight.data.copy_(wrapped.fp32_params[n].data)


def constrain_mean(mean: Dict[str, Tensor], weights: Dict[str, Tensor], *, length: float) -> None:
    """Rescale the columns of a mean of checkpoints if they are constrained in ``weights``, one of the checkpoints.

    A mean of columns of equal length is shorter than the columns. Nothing is done for a ``length`` of zero.
    """
    for name, weight in weights.items() if length > 0 else ():
        if weight.dim() == 2 and torch.allclose(_column_lengths(weight), torch.tensor(length), rtol=TOLERANCE, atol=0):
            normalise_columns_(mean[name], length)
