"""Sparse gradients are scaled and clipped, and an optimiser that cannot take them says so.

Mends: the host scales a copy of a sparse gradient, and takes its norm in a way that torch does not have. Where an
optimiser then meets one that it cannot take, errors name neither cause nor remedy, or momentum makes it grow with every
update.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_neither_scales_nor_clips_sparse_gradients`` passes.
"""

from types import SimpleNamespace
from typing import Any, Callable

import torch
from fairseq.optim import FairseqOptimizer
from torch import Tensor
from torch.optim import SGD, Adagrad

from fairseq_plugins.host.wrapping import wrap

TAKE_SPARSE = (SGD, Adagrad)
"""Optimisers of torch that leave the rows alone which a sparse gradient does not hold."""


def mend() -> None:
    """Wrap the host's ``FairseqOptimizer.multiply_grads`` and ``clip_grad_norm``."""
    for name in ("multiply_grads", "clip_grad_norm"):
        wrap(FairseqOptimizer, name, _change_rows)
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()  # torch's default, of which it warns unless it is given


def _change_rows(change: Callable[..., Any], optimizer: FairseqOptimizer, *args: Any, **kwargs: Any) -> Any:
    """Change dense gradients and the rows of sparse ones, which then are coalesced."""
    params = list(optimizer.params)
    sparse = [param for param in params if param.grad is not None and param.grad.is_sparse]
    if not sparse:
        return change(optimizer, *args, **kwargs)
    _check(optimizer)
    for param in sparse:
        param.grad = param.grad.coalesce()
    return change(SimpleNamespace(params=[_with_rows(param) for param in params]), *args, **kwargs)


def _with_rows(param: Tensor) -> Any:
    """Stands for a parameter: its gradient is the rows of a coalesced one, which have its norm and share its memory."""
    if param.grad is None or not param.grad.is_sparse:
        return param
    return SimpleNamespace(grad=param.grad.values())


def _check(optimizer: FairseqOptimizer) -> None:
    """Refuse optimisers that would fail, or would pass over all rows."""
    settings = [group.get(name, 0) for group in optimizer.param_groups for name in ("momentum", "weight_decay")]
    if type(optimizer.optimizer) not in TAKE_SPARSE or any(settings):
        name = type(optimizer.optimizer).__name__
        raise ValueError(
            f"--sparse-gradients on: {name} with these flags changes all rows; give off, or --optimizer sgd, "
            "adagrad or damped_adagrad with --momentum 0 and --weight-decay 0"
        )
