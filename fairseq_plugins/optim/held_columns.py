"""Columns of weight matrices that are brought back to their length after every update."""

from typing import Optional, Protocol, runtime_checkable

from fairseq.optim import AMPOptimizer, FairseqOptimizer, FP16Optimizer
from torch import Tensor, nn

from fairseq_plugins.modules.column_norm import ColumnNorm
from fairseq_plugins.optim.averaged_sgd import AveragedSGD


@runtime_checkable
class HoldsColumns(Protocol):
    """A model with columns that its task may hold.

    Attributes:
        column_norm: of its matrices, or None.
    """

    column_norm: Optional[ColumnNorm]


def will_hold_columns(model: nn.Module) -> None:
    """Note that :func:`hold_columns` will be called after every update; without it a model refuses to train."""
    norm = _column_norm(model)
    if norm is not None:
        norm.is_held = True


def hold_columns(model: Optional[nn.Module], optimizer: FairseqOptimizer) -> None:
    """Bring the columns of a model's matrices back after an update; a model that holds none stays as it is.

    With ``--fp16`` and ``--bf16`` they are those of the optimiser's weights in 32 bits, which the model's then follow.
    :class:`AveragedSGD` has brought them back itself.

    Raises:
        ValueError: if the optimiser holds all weights in one vector, as the host's does with ``--fp16``.
    """
    norm = _column_norm(model)
    if norm is None:
        return
    wrapped = optimizer.fp32_optimizer if isinstance(optimizer, AMPOptimizer) else optimizer
    if not isinstance(wrapped, FP16Optimizer) and isinstance(wrapped.optimizer, AveragedSGD):
        return
    for weight in norm.weights:
        learned = _learned(optimizer, weight)
        norm.normalise_(learned.data)
        if learned is not weight:
            weight.data.copy_(learned.data)


def _column_norm(model: Optional[nn.Module]) -> Optional[ColumnNorm]:
    return model.column_norm if isinstance(model, HoldsColumns) else None


def _learned(optimizer: FairseqOptimizer, weight: Tensor) -> Tensor:
    """What the optimiser updates for a weight of the model: the weight, or its copy in 32 bits."""
    if not isinstance(optimizer, FP16Optimizer):
        return weight
    if optimizer.has_flat_params:
        raise ValueError("--column-norm finds no columns in the one vector of --fp16: add --fp16-no-flatten-grads")
    return next(copy for model, copy in zip(optimizer.fp16_params, optimizer.fp32_params) if model is weight)
