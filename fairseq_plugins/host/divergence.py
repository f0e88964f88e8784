"""A training that diverges says which weights or gradients did, at which update, and what to lower.

Ends: where a weight, a gradient, their norm or the loss of an update or of validation is infinite or no number.
Mends: the host clips by a norm that is infinite or no number, which makes numbers of no gradient any more, and then
reads the batch again with hooks that fail where a module returns something else than tensors; the error is that of the
hooks. Of several processes it says that their gradients are inconsistent. With a loss that is none it goes on. Where
there is a GPU that ``--cpu`` leaves alone, it multiplies gradients by a norm that lies there.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_ends_in_its_hooks`` passes.
"""

import math
import sys
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional, Tuple

import torch
from fairseq import trainer as host_trainer
from fairseq.trainer import Trainer
from torch import Tensor, nn

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap methods of the host's ``Trainer``, and the class whose objects search a batch for such numbers."""
    wrap(Trainer, "train_step", _check_loss)
    wrap(Trainer, "valid_step", _check_valid_loss)
    wrap(Trainer, "clip_grad_norm", _check_norm)
    wrap(host_trainer, "NanDetector", _tell)


def _check_loss(
    train_step: Callable[..., Optional[Dict[str, Any]]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[Dict[str, Any]]:
    """Make an update.

    Raises:
        ValueError: if its loss is infinite or no number.
    """
    logged = train_step(trainer, *args, **kwargs)
    if logged is not None and not _passes_over_updates(trainer):
        _require_finite(trainer, logged, of="the loss")
    return logged


def _check_valid_loss(
    valid_step: Callable[..., Dict[str, Any]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Dict[str, Any]:
    """Measure a batch of validation: a recurrence may explode over a text that it survives over a training's window.

    Raises:
        ValueError: if its loss is infinite or no number.
    """
    logged = valid_step(trainer, *args, **kwargs)
    _require_finite(trainer, logged, of="the loss of validation")
    return logged


def _require_finite(trainer: Trainer, logged: Dict[str, Any], *, of: str) -> None:
    if not math.isfinite(logged.get("loss", 0)):
        largest = _largest((name, weight.detach()) for name, weight in trainer.get_model().named_parameters())
        what = f"{of} is infinite or no number, the largest weight is {largest}"
        raise ValueError(_describe(trainer, what, update=trainer.get_num_updates()))


def _check_norm(clip_grad_norm: Callable[..., Tensor], trainer: Trainer, clip_norm: float) -> Tensor:
    """Look at gradients before they are clipped."""
    if _passes_over_updates(trainer) or trainer.is_fsdp:
        return clip_grad_norm(trainer, clip_norm)

    def check(norm: Tensor) -> Tensor:
        if not torch.isfinite(norm).all():
            what = _where(list(trainer.get_model().named_parameters()))
            raise FloatingPointError(_describe(trainer, what, update=trainer.get_num_updates() + 1))
        return norm.to(trainer.device)

    optimizer: Any = trainer.optimizer
    return optimizer.clip_grad_norm(clip_norm, aggregate_norm_fn=check)


def _tell(nan_detector: Callable[..., Any], model: nn.Module) -> NoReturn:
    """End where the host, after it has saved crash.pt, would begin to search.

    Raises:
        ValueError: with the first line of what the host caught.
    """
    raise ValueError(str(sys.exception()).partition("\n")[0]) from None


def _passes_over_updates(trainer: Trainer) -> bool:
    """Whether the host lowers the scale of the loss where such numbers occur, and ends by itself if that is no help."""
    return trainer.cfg.common.fp16 or trainer.cfg.common.amp


def _describe(trainer: Trainer, what: str, *, update: int) -> str:
    clip_norm = trainer.cfg.optimization.clip_norm
    factors = {"--lr": trainer.get_lr(), **({"--clip-norm": clip_norm} if clip_norm > 0 else {})}
    factors.update(getattr(trainer.get_criterion(), "penalty_factors", {}))
    lower = ", ".join(f"{flag} (now {value:g})" for flag, value in factors.items())
    clip = "" if clip_norm > 0 else ", or give --clip-norm"
    return f"the training diverged at update {update}: {what}; lower {lower}{clip}"


def _where(named: List[Tuple[str, nn.Parameter]]) -> str:
    weights = [name for name, weight in named if not _is_finite(weight)]
    gradients = [name for name, weight in named if weight.grad is not None and not _is_finite(weight.grad)]
    if weights:
        return f"weights are infinite or no numbers in {_first(weights)}"
    if gradients:
        return f"gradients are infinite or no numbers in {_first(gradients)}"
    largest = _largest((name, weight.grad) for name, weight in named if weight.grad is not None)
    return f"the gradients' norm is infinite, the largest is {largest}"


def _largest(named: Iterable[Tuple[str, Tensor]]) -> str:
    size, name = max((_dense(one).abs().max().item(), name) for name, one in named)
    return f"{size:.3g} in {name}"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(_dense(tensor)).all())


def _dense(tensor: Tensor) -> Tensor:
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _first(names: List[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"
