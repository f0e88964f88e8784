"""Non-monotonically triggered averaged SGD (Merity et al. 2018, section 3)."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Protocol, Sequence, runtime_checkable

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import AMPOptimizer, FairseqOptimizer, FP16Optimizer, register_optimizer
from fairseq.tasks import TASK_REGISTRY
from omegaconf import II
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from fairseq_plugins.modules.simple_rnn import ColumnNorm, column_norm
from fairseq_plugins.options import check_not_negative, choices

# SGD that can keep the running mean of its iterates.


class AveragedSGD(SGD):
    """SGD whose model holds the averaged weights between updates.

    Once :meth:`start_averaging` was called, parameters hold the raw iterate only between
    :meth:`zero_grad` and the end of :meth:`step`, that is during the forward and backward pass of an
    update. At any other time, when one evaluates or saves, they hold the average and the raw iterate
    lies in the optimiser's state. The exchange moves pointers, no data.

    The average is the one of :class:`torch.optim.ASGD` with ``lambd=0, t0=0`` (Polyak & Juditsky 1992): the
    mean of all iterates from the second averaged update on. Here a learning rate acts on the
    update that it is set for; there it acts one update later.

    Columns that keep their length (:class:`~fairseq_plugins.modules.simple_rnn.ColumnNorm`) do so in every iterate,
    and in the average where the model holds it; the mean itself is that of the iterates.

    All state lies in the parameter groups and the per-parameter state, so it is part of
    ``state_dict()`` whatever wraps the optimiser.
    """

    def __init__(self, params: ParamsT, *, lr: float, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        for group in self.param_groups:
            group.update(num_averaged=None, model_holds_average=False)

    @property
    def is_averaging(self) -> bool:
        """Whether :meth:`start_averaging` was called."""
        return self.param_groups[0]["num_averaged"] is not None

    def start_averaging(self) -> None:
        """Average the iterates of all later updates."""
        for group in self.param_groups:
            group["num_averaged"] = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; while averaging, put the raw iterate into the model."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            if group["model_holds_average"]:
                self._exchange(group)

    def show_average(self) -> None:
        """Put the average into the model, where an update was begun but not made."""
        for group in self.param_groups:
            if group["num_averaged"] and not group["model_holds_average"]:
                self._exchange(group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        """One SGD update; while averaging, also update the mean and put it into the model."""
        assert not self.param_groups[0]["model_holds_average"], "call zero_grad before the forward pass"
        loss = super().step(closure)
        for param in (param for group in self.param_groups for param in group["params"]):
            norm = column_norm(param)
            if norm is not None:
                norm.normalise_(param.data)
        for group in self.param_groups:
            if group["num_averaged"] is not None:
                self._average(group)
                self._exchange(group)
        return loss

    def _average(self, group: Dict[str, Any]) -> None:
        group["num_averaged"] += 1
        if group["num_averaged"] == 1:
            for param in group["params"]:
                self.state[param]["exchanged"] = param.detach().clone()
        else:
            means = [self.state[param]["exchanged"] for param in group["params"]]
            torch._foreach_lerp_(means, group["params"], 1 / (group["num_averaged"] - 1))

    def _exchange(self, group: Dict[str, Any]) -> None:
        for param in group["params"]:
            state, norm = self.state[param], column_norm(param)
            # an average that was saved before its columns kept their length has no divisors
            if norm is not None and group["model_holds_average"] and "divisors" in state:
                param.data.mul_(state["divisors"])
            param.data, state["exchanged"] = state["exchanged"], param.data
            if norm is not None and not group["model_holds_average"]:
                state["divisors"] = norm.normalise_(param.data)
        group["model_holds_average"] = not group["model_holds_average"]


# How a task and an optimiser that follows validation meet.


@runtime_checkable
class ReportsValidation(Protocol):
    """A task that tells an optimiser of validations, as :class:`FollowsValidation` needs; optimisers ask for it."""

    def report_validation(self, loss: float) -> None:
        """Hand ``loss``, of a validation at the end of an epoch, to an optimiser that follows it."""


@runtime_checkable
class FollowsValidation(Protocol):
    """An optimiser that acts on the course of the validation loss, and may show other weights than it updates."""

    def show_average(self) -> None:
        """Put the weights to validate into the model; called before every validation."""

    def record_validation(self, loss: float) -> None:
        """Take the validation loss of an epoch; called once at the end of each."""


# Weight decay that is a part of the gradient.


@dataclass
class WeightDecayConfig(FairseqDataclass):
    """Flags of every optimiser that adds weight decay to the gradient."""

    weight_decay: float = field(
        default=0.0, metadata={"help": "coefficient of all weights, added to their gradient after clipping"}
    )
    lr: List[float] = II("optimization.lr")


logger = logging.getLogger(__name__)


STOPPABLE_SCHEDULERS = ("fixed", "reduce_lr_on_plateau")
"""Schedulers that report the optimiser's learning rate to fairseq, which stops when it is below its minimum."""


def best_old_value(values: Sequence[float], nonmonotone_interval: int) -> float:
    """The best of v_1 .. v_{t-1-n}; infinite where there is none."""
    return min(values[: max(0, len(values) - 1 - nonmonotone_interval)], default=math.inf)


def is_triggered(values: Sequence[float], nonmonotone_interval: int) -> bool:
    """Whether the last validation value is worse than the best one at least n + 1 validations older.

    With values v_1 .. v_t: t - 1 > n and v_t > min(v_1 .. v_{t-1-n}).
    """
    return values[-1] > best_old_value(values, nonmonotone_interval)


Averaging = choices(["triggered", "immediate"])


@dataclass
class NTASGDConfig(WeightDecayConfig):
    """Flags of ``--optimizer nt_asgd``."""

    nonmonotone_interval: int = field(
        default=5,
        metadata={
            "help": "n: trigger when validation is worse than the best value more than n validations old; only those "
            "at the end of an epoch count"
        },
    )
    averaging: Averaging = field(
        default="triggered",
        metadata={
            "help": "triggered: plain SGD until the trigger, averaged from then on; "
            "immediate: averaged from the first update, and the trigger ends the training (fine-tuning)"
        },
    )
    task: str = II("task._name")
    lr_scheduler: str = II("lr_scheduler._name")
    disable_validation: bool = II("dataset.disable_validation")
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")


@register_optimizer("nt_asgd", dataclass=NTASGDConfig)
class NTASGD(FairseqOptimizer, FollowsValidation):
    """SGD that turns to averaging when validation stops improving.

    The task hands over the validation loss at the end of every epoch (:meth:`record_validation`).
    Validation and checkpoints see the averaged weights; see :class:`AveragedSGD`. With
    ``--averaging immediate`` the trigger makes :meth:`get_lr` minus infinity, below any ``--stop-min-lr``,
    which is how fairseq ends a training.

    Raises:
        ValueError: on a negative interval or weight decay, a task that does not hand over validation losses, 16-bit
            training without ``--amp``, or fine-tuning with a scheduler that does not let it end.
    """

    def __init__(self, cfg: NTASGDConfig, params: Iterable[nn.Parameter]):
        super().__init__(cfg)
        if cfg.nonmonotone_interval < 0:
            raise ValueError(f"--nonmonotone-interval {cfg.nonmonotone_interval}: give 0 or more")
        if not issubclass(TASK_REGISTRY.get(cfg.task, type(None)), ReportsValidation):
            raise ValueError(
                f"--optimizer nt_asgd needs the validation loss of each epoch, which --task {cfg.task} does not hand "
                "over: use --task stateful_lm, or another optimizer"
            )
        check_not_negative(cfg.weight_decay, flag="--weight-decay")
        if cfg.averaging == "immediate" and cfg.lr_scheduler not in STOPPABLE_SCHEDULERS:
            raise ValueError(
                f"--averaging immediate cannot end a training with --lr-scheduler {cfg.lr_scheduler}: "
                f"use {' or '.join(STOPPABLE_SCHEDULERS)}"
            )
        if cfg.fp16 or cfg.bf16:
            raise ValueError(
                "--optimizer nt_asgd averages 32-bit weights: leave out --fp16 and --bf16; on a GPU --amp may take "
                "their place"
            )
        if cfg.disable_validation:
            lost = "starts averaging" if cfg.averaging == "triggered" else "ends the training"
            logger.warning(f"--optimizer nt_asgd {lost} by what it validates: with --disable-validation it never does")
        self._optimizer = AveragedSGD(params, **self.optimizer_config)
        for group in self.param_groups:
            group.update(validation_losses=[], is_finished=False, averaging=str(cfg.averaging))
        if cfg.averaging == "immediate":
            self._optimizer.start_averaging()

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        return {"lr": self.cfg.lr[0], "weight_decay": self.cfg.weight_decay}

    def get_lr(self) -> float:
        return -math.inf if self.param_groups[0]["is_finished"] else super().get_lr()

    def show_average(self) -> None:
        """See :meth:`AveragedSGD.show_average`."""
        self._optimizer.show_average()

    def load_state_dict(self, state_dict: Dict[str, Any], optimizer_overrides: Optional[Dict[str, Any]] = None) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: if fine-tuning is asked for but the checkpoint is of a training with another optimiser
                state.
        """
        super().load_state_dict(state_dict, optimizer_overrides)
        group = self.param_groups[0]
        # a state without the name is of an earlier version
        was_immediate = group.setdefault("averaging", "immediate") == "immediate" and self._optimizer.is_averaging
        if self.cfg.averaging == "immediate" and not was_immediate:
            raise ValueError(
                "--averaging immediate needs a fresh average, and the checkpoint brings the state of a training that "
                "was not averaged from its start: name it with --finetune-from-model, or add --reset-optimizer"
            )
        group["averaging"] = str(self.cfg.averaging)
        # another --averaging or --nonmonotone-interval may let a finished training go on
        losses = group["validation_losses"]
        group["is_finished"] = (
            self.cfg.averaging == "immediate" and bool(losses) and is_triggered(losses, self.cfg.nonmonotone_interval)
        )

    def record_validation(self, loss: float) -> None:
        """Take the validation loss of an epoch and act on the trigger."""
        losses = self.param_groups[0]["validation_losses"]
        losses.append(loss)
        if not is_triggered(losses, self.cfg.nonmonotone_interval):
            return
        if self.cfg.averaging == "immediate":
            logger.info(f"fine-tuning ends: {self._explain(losses)}")
            self.param_groups[0]["is_finished"] = True
        elif not self._optimizer.is_averaging:
            logger.info(f"averaging starts: {self._explain(losses)}")
            self._optimizer.start_averaging()

    def forget_validations(self) -> None:
        """Compare no more with the losses so far, which are of another validation set."""
        self.param_groups[0]["validation_losses"].clear()

    def _explain(self, losses: Sequence[float]) -> str:
        interval = self.cfg.nonmonotone_interval
        best = best_old_value(losses, interval)
        return f"validation loss {losses[-1]:.5f} is above {best:.5f}, the best of over {interval} validations ago"


# Columns of weight matrices that are brought back to their length after every update.


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
        ValueError: if the optimiser holds all weights in one vector, as fairseq's does with ``--fp16``.
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
