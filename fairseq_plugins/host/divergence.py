"""A training that diverges says which weights or gradients did, at which update, and what to lower.

Mends: the host clips by a norm that is infinite or no number, which makes numbers of no gradient any more, and then
reads the batch again with hooks that fail where a module returns something else than tensors; the error is that of the
hooks. Of several processes it says that their gradients are inconsistent.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_ends_in_its_hooks`` passes.
"""

import sys
from typing import Any, Callable, List, NoReturn

import torch
from fairseq import trainer as host_trainer
from fairseq.trainer import Trainer
from torch import Tensor, nn

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``Trainer.clip_grad_norm``, and the class whose objects search a batch for such numbers."""
    wrap(Trainer, "clip_grad_norm", _check_norm)
    wrap(host_trainer, "NanDetector", _tell)


def _check_norm(clip_grad_norm: Callable[..., Tensor], trainer: Trainer, clip_norm: float) -> Tensor:
    """Look at gradients before they are clipped; with --fp16 and --amp the host passes over such updates by itself."""
    if trainer.cfg.common.fp16 or trainer.cfg.common.amp or trainer.is_fsdp:
        return clip_grad_norm(trainer, clip_norm)

    def check(norm: Tensor) -> Tensor:
        if not torch.isfinite(norm).all():
            raise FloatingPointError(_describe(trainer, clip_norm=clip_norm))
        return norm

    optimizer: Any = trainer.optimizer
    return optimizer.clip_grad_norm(clip_norm, aggregate_norm_fn=check)


def _tell(nan_detector: Callable[..., Any], model: nn.Module) -> NoReturn:
    """End where the host, after it has saved crash.pt, would begin to search.

    Raises:
        ValueError: with the first line of what the host caught.
    """
    raise ValueError(str(sys.exception()).partition("\n")[0]) from None


def _describe(trainer: Trainer, *, clip_norm: float) -> str:
    named = list(trainer.get_model().named_parameters())
    weights = [name for name, weight in named if not _is_finite(weight)]
    gradients = [name for name, weight in named if weight.grad is not None and not _is_finite(weight.grad)]
    if weights:
        what = f"weights are infinite or no numbers in {_first(weights)}"
    elif gradients:
        what = f"gradients are infinite or no numbers in {_first(gradients)}"
    else:
        largest = max((_dense(one.grad).abs().max().item(), name) for name, one in named if one.grad is not None)
        what = "the gradients' norm is infinite, the largest is {:.3g} in {}".format(*largest)
    factors = {"--lr": trainer.get_lr(), **({"--clip-norm": clip_norm} if clip_norm > 0 else {})}
    factors.update(getattr(trainer.get_criterion(), "penalty_factors", {}))
    lower = ", ".join(f"{flag} (now {value:g})" for flag, value in factors.items())
    clip = "" if clip_norm > 0 else ", or give --clip-norm"
    return f"the training diverged at update {trainer.get_num_updates() + 1}: {what}; lower {lower}{clip}"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(_dense(tensor)).all())


def _dense(tensor: Tensor) -> Tensor:
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _first(names: List[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"
