"""Adam with weight decay in the gradient, and Adagrad whose accumulator starts above zero."""

import ast
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from fairseq.optim import register_optimizer
from torch import nn
from torch.optim import Adagrad, Adam

from fairseq_plugins.optim.base import ConfiguredOptimizer, WeightDecayConfig
from fairseq_plugins.options import UserError, check_not_negative, check_positive, choices

FUSED_ON = ("cpu", "cuda")
"""Devices where torch updates all parameters in one pass."""

EpsAdded = choices(["after-correction", "before-correction"])


@dataclass
class L2AdamConfig(WeightDecayConfig):
    """Flags of ``--optimizer l2_adam``."""

    adam_betas: str = field(default="(0.9, 0.999)", metadata={"help": "decay of the means of gradients and squares"})
    adam_eps: float = field(default=1e-8, metadata={"help": "added to the root of the mean square"})
    adam_eps_added: EpsAdded = field(
        default="after-correction",
        metadata={
            "help": "whether --adam-eps is added after the bias correction of the mean square, as in torch and the "
            "paper's algorithm, or before it, as in Chainer, TensorFlow and fairseq's adam (default: "
            "after-correction)"
        },
    )


class EarlyEpsAdam(Adam):
    """Adam that adds eps to the root of the mean square before the correction of its start at zero."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # With a fused kernel the scaler of --amp would call step for gradients that overflowed, and count an update
        # that the kernel skips.
        self._step_supports_amp_scaling = False

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update all weights once."""
        epsilons = [group["eps"] for group in self.param_groups]
        # torch computes sqrt(v) / sqrt(1 - b2^t) + eps', which for eps' = eps / sqrt(1 - b2^t) is this form. The group
        # counts t, because reading a weight's own count would wait for the GPU.
        for group in self.param_groups:
            if "num_updates" not in group:  # at the start, or after a run that added eps after the correction
                group["num_updates"] = int(next((state["step"] for state in self.state.values()), 0))
            group["num_updates"] += 1
            group["eps"] /= (1 - group["betas"][1] ** group["num_updates"]) ** 0.5
        loss = super().step(closure)
        for group, eps in zip(self.param_groups, epsilons):
            group["eps"] = eps
        return loss


@register_optimizer("l2_adam", dataclass=L2AdamConfig)
class L2Adam(ConfiguredOptimizer):
    """Adam (Kingma & Ba 2015) on the loss plus half the weight decay times the squared norm of the weights.

    The decay passes through Adam's moments like any gradient. fairseq's ``--optimizer adam`` decouples it (AdamW).

    With the moments m and v after t updates and their decay rates b1 and b2, an update is

        after-correction:   w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
        before-correction:  w -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)

    They differ where gradients are as small as eps, for example in embedding rows whose gradient is the decay alone.
    There the second form takes shorter steps until b2^t is near zero.

    Raises:
        UserError: if ``--adam-betas`` are not two numbers in [0, 1), ``--adam-eps`` is not above zero, or another value
            is below zero.
    """

    def __init__(self, cfg: L2AdamConfig, params: Iterable[nn.Parameter]):
        super().__init__(cfg)
        params = list(params)
        fused = all(param.device.type in FUSED_ON for param in params)
        kind = EarlyEpsAdam if cfg.adam_eps_added == "before-correction" else Adam
        self._optimizer = kind(params, fused=fused, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        eps = check_positive(self.cfg.adam_eps, flag="--adam-eps")  # rows of absent words would be 0 / 0
        return {**super().optimizer_config, "betas": parse_betas(self.cfg.adam_betas), "eps": eps}


def parse_betas(text: str) -> Tuple[float, float]:
    """Read ``--adam-betas``, such as ``"(0.9, 0.999)"``, as fairseq does.

    Raises:
        UserError: if they are not two numbers in [0, 1).
    """
    try:
        first, second = ast.literal_eval(text)
        if all(0 <= beta < 1 for beta in (first, second)):
            return first, second
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    raise UserError(f'--adam-betas {text}: give two numbers of at least 0 and below 1, as in "(0.9, 0.999)"')


@dataclass
class DampedAdagradConfig(WeightDecayConfig):
    """Flags of ``--optimizer damped_adagrad``."""

    initial_accumulator: float = field(
        default=1e-5,
        metadata={
            "help": "initial value of a weight's sum of squared gradients. While the squared gradients sum to far "
            "less, as for rare words, steps are like those of SGD. 0: as --optimizer adagrad, where the "
            "first step of every weight has the length of the learning rate"
        },
    )


@register_optimizer("damped_adagrad", dataclass=DampedAdagradConfig)
class DampedAdagrad(ConfiguredOptimizer):
    """Adagrad (Duchi et al. 2011): w -= lr g / sqrt(a + sum of g^2 so far), with a = ``--initial-accumulator``.

    In fairseq's ``--optimizer adagrad`` a is 0. Works with the sparse gradients of ``--criterion noise_contrastive``.

    Raises:
        UserError: if a value is below zero or not a number.
    """

    def __init__(self, cfg: DampedAdagradConfig, params: Iterable[nn.Parameter]):
        super().__init__(cfg)
        accumulator = check_not_negative(cfg.initial_accumulator, flag="--initial-accumulator")
        self._optimizer = Adagrad(params, initial_accumulator_value=accumulator, **self.optimizer_config)
