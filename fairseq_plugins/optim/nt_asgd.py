"""Non-monotonically triggered averaged SGD (Merity et al. 2018, section 3).

fairseq validates and then writes its checkpoint, and both must see averaged weights, while the next update continues
from the raw iterate. Only the process that saves is called when the checkpoint is written. So the average stays in the
model of every process until fairseq clears gradients for the next update.
"""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Optional, Sequence

import torch
from fairseq.optim import register_optimizer
from fairseq.tasks import TASK_REGISTRY
from omegaconf import II
from torch import nn
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from fairseq_plugins.optim.base import ConfiguredOptimizer, WeightDecayConfig
from fairseq_plugins.optim.column_norm import column_norm
from fairseq_plugins.options import UserError, check_not_negative, choices

logger = logging.getLogger(__name__)

STOPPABLE_SCHEDULERS = ("fixed", "reduce_lr_on_plateau")
"""Schedulers that report the optimiser's learning rate to fairseq, which stops when it is below its minimum."""

Averaging = choices(["triggered", "immediate"])


class AveragedSGD(SGD):
    """SGD whose model holds the averaged weights between updates.

    After :meth:`start_averaging`, parameters hold the raw iterate only from :meth:`zero_grad` to the end of
    :meth:`step`, that is during the forward and backward pass of an update. At all other times, in evaluation and in
    checkpoints, they hold the average, and ``state[param]["exchanged"]`` holds the raw iterate. The exchange swaps
    pointers and copies no data.

    The average equals that of :class:`torch.optim.ASGD` with ``lambd=0, t0=0`` (Polyak & Juditsky 1992): the mean of
    all iterates from the second averaged update on. A learning rate acts here on the update that it is set for, in
    torch on the next one.

    All state is in the parameter groups and the per-parameter state, so that ``state_dict()`` holds it under every
    wrapper of the optimiser.
    """

    def __init__(self, params: ParamsT, *, lr: float, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        for group in self.param_groups:
            # num_averaged is None until averaging starts, then the number of averaged updates
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
        """Clear gradients. While averaging, put the raw iterate into the model, because an update begins here."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            if group["model_holds_average"]:
                self._exchange(group)

    def show_average(self) -> None:
        """Put the average into the model after an update that was begun and skipped."""
        for group in self.param_groups:
            if group["num_averaged"] and not group["model_holds_average"]:
                self._exchange(group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        """One SGD update. While averaging, also update the mean and put it into the model."""
        assert not self.param_groups[0]["model_holds_average"], "call zero_grad before the forward pass"
        loss = super().step(closure)
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
            # The nth update turns the mean of n - 2 iterates into the mean of n - 1. At the second update the weight is
            # 1: the first iterate drops out, as in torch's ASGD.
            torch._foreach_lerp_(means, group["params"], 1 / (group["num_averaged"] - 1))

    def _exchange(self, group: Dict[str, Any]) -> None:
        for param in group["params"]:
            state = self.state[param]
            param.data, state["exchanged"] = state["exchanged"], param.data
        group["model_holds_average"] = not group["model_holds_average"]


def best_old_value(values: Sequence[float], nonmonotone_interval: int) -> float:
    """min(v_1 .. v_{t-1-n}), or inf if there is none."""
    return min(values[: max(0, len(values) - 1 - nonmonotone_interval)], default=math.inf)


def is_triggered(values: Sequence[float], nonmonotone_interval: int) -> bool:
    """Whether v_t > min(v_1 .. v_{t-1-n}), for the validation losses v_1 .. v_t and n = ``nonmonotone_interval``.

    Without a loss it is False. The last n values before v_t do not count: validation noise should not start averaging,
    a lack of progress over n validations should.
    """
    return bool(values) and values[-1] > best_old_value(values, nonmonotone_interval)


@dataclass
class NTASGDConfig(WeightDecayConfig):
    """Flags of ``--optimizer nt_asgd``."""

    nonmonotone_interval: int = field(
        default=5,
        metadata={
            "help": "n: the trigger of --averaging is a validation loss above the lowest one from more than "
            "n validations ago; only validations at the end of an epoch count"
        },
    )
    averaging: Averaging = field(
        default="triggered",
        metadata={
            "help": "triggered: plain SGD until the trigger, averaged from then on; "
            "immediate: averaged from the first update, and the trigger ends the run (fine-tuning)"
        },
    )
    task: str = II("task._name")
    lr_scheduler: str = II("lr_scheduler._name")
    disable_validation: bool = II("dataset.disable_validation")
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")


@register_optimizer("nt_asgd", dataclass=NTASGDConfig)
class NTASGD(ConfiguredOptimizer):
    """SGD that starts averaging when validation stops improving.

    The task ``reports_validation``: it passes the loss of every epoch to :meth:`record_validation`, and calls
    :meth:`show_average` before every validation and checkpoint, so that both see the averaged weights
    (:class:`AveragedSGD`). fairseq does neither. With ``--averaging immediate``, for fine-tuning, the trigger ends the
    run: :meth:`get_lr` becomes minus infinity, below any ``--stop-min-lr``, where fairseq stops.

    Raises:
        UserError: on a negative interval or weight decay, a task that does not report validation losses, 16-bit
            training without ``--amp``, ``--column-norm``, or fine-tuning with a scheduler that cannot end it.
    """

    def __init__(self, cfg: NTASGDConfig, params: Iterable[nn.Parameter]):
        super().__init__(cfg)
        check_not_negative(cfg.nonmonotone_interval, flag="--nonmonotone-interval")
        if not getattr(TASK_REGISTRY.get(cfg.task), "reports_validation", False):
            raise UserError(
                f"--optimizer nt_asgd needs the validation loss of each epoch, which --task {cfg.task} does not "
                "report: use --task stateful_lm, or another optimizer"
            )
        if cfg.averaging == "immediate" and cfg.lr_scheduler not in STOPPABLE_SCHEDULERS:
            raise UserError(
                f"--averaging immediate cannot end a run with --lr-scheduler {cfg.lr_scheduler}: "
                f"use {' or '.join(STOPPABLE_SCHEDULERS)}"
            )
        if cfg.fp16 or cfg.bf16:
            raise UserError(
                "--optimizer nt_asgd averages 32-bit weights: leave out --fp16 and --bf16; on a GPU --amp may take "
                "their place"
            )
        params = list(params)
        if any(column_norm(param) is not None for param in params):
            raise UserError(
                "--optimizer nt_asgd does not keep the columns of --column-norm at their length when it averages: give "
                "--column-norm 0, or another optimizer"
            )
        if cfg.disable_validation:
            lost = "starts averaging" if cfg.averaging == "triggered" else "ends the run"
            logger.warning(f"--optimizer nt_asgd {lost} only after a validation, and --disable-validation makes none")
        self._optimizer = AveragedSGD(params, **self.optimizer_config)
        for group in self.param_groups:
            group.update(validation_losses=[], averaging=str(cfg.averaging))
        if cfg.averaging == "immediate":
            self._optimizer.start_averaging()

    def get_lr(self) -> float:
        losses = self.param_groups[0]["validation_losses"]
        is_finished = self.cfg.averaging == "immediate" and is_triggered(losses, self.cfg.nonmonotone_interval)
        return -math.inf if is_finished else super().get_lr()

    def show_average(self) -> None:
        """See :meth:`AveragedSGD.show_average`."""
        self._optimizer.show_average()

    def load_state_dict(self, state_dict: Dict[str, Any], optimizer_overrides: Optional[Dict[str, Any]] = None) -> None:
        """Resume from a checkpoint.

        Raises:
            UserError: if ``--averaging immediate`` is given and the checkpoint's run did not average from its start.
        """
        super().load_state_dict(state_dict, optimizer_overrides)
        group = self.param_groups[0]
        if self.cfg.averaging == "immediate" and group["averaging"] != "immediate":
            raise UserError(
                "--averaging immediate needs a fresh average, and the checkpoint brings the state of a run that "
                "was not averaged from its start: name it with --finetune-from-model, or add --reset-optimizer"
            )
        group["averaging"] = str(self.cfg.averaging)

    def record_validation(self, loss: float) -> None:
        """Take the validation loss of an epoch and act on the trigger."""
        losses, interval = self.param_groups[0]["validation_losses"], self.cfg.nonmonotone_interval
        losses.append(loss)
        if not is_triggered(losses, interval):
            return
        old = f"{best_old_value(losses, interval):.5f}, the best that is more than {interval} validations old"
        reason = f"validation loss {loss:.5f} is above {old}"
        if self.cfg.averaging == "immediate":
            logger.info(f"fine-tuning ends: {reason}")
        elif not self._optimizer.is_averaging:
            logger.info(f"averaging starts: {reason}")
            self._optimizer.start_averaging()

    def forget_validations(self) -> None:
        """Drop the losses so far, which cannot be compared with those of another validation set."""
        self.param_groups[0]["validation_losses"].clear()
