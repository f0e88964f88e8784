"""Non-monotonically triggered averaged SGD (Merity et al. 2018, section 3)."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Optional, Sequence

from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.tasks import TASK_REGISTRY
from omegaconf import II
from torch import nn

from fairseq_plugins.flags.choices import choices
from fairseq_plugins.flags.values import check_not_negative
from fairseq_plugins.optim.averaged_sgd import AveragedSGD
from fairseq_plugins.optim.validation_protocol import FollowsValidation, ReportsValidation
from fairseq_plugins.optim.weight_decay import WeightDecayConfig

logger = logging.getLogger(__name__)


STOPPABLE_SCHEDULERS = ("fixed", "reduce_lr_on_plateau")
"""Schedulers that report the optimiser's learning rate to the host, which stops when it is below its minimum."""


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
    which is how the host ends a training.

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
