"""Adagrad whose sums of squared gradients start above zero (Duchi et al. 2011)."""

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable

from fairseq.optim import FairseqOptimizer, register_optimizer
from torch import nn
from torch.optim import Adagrad

from fairseq_plugins.flags.values import check_not_negative
from fairseq_plugins.optim.weight_decay import WeightDecayConfig


@dataclass
class DampedAdagradConfig(WeightDecayConfig):
    """Flags of ``--optimizer damped_adagrad``."""

    initial_accumulator: float = field(
        default=1e-5,
        metadata={
            "help": "what the sum of a weight's squared gradients starts from. The steps of weights whose sum is far "
            "below it, such as those of rare words, are as in SGD; 0: as in --optimizer adagrad, where the first step "
            "of every weight is as long as the learning rate"
        },
    )


@register_optimizer("damped_adagrad", dataclass=DampedAdagradConfig)
class DampedAdagrad(FairseqOptimizer):
    """w -= lr g / sqrt(a + sum of g^2 so far), element by element, with one a for all weights.

    In the host's ``--optimizer adagrad`` a is 0. Works with the sparse gradients of ``--criterion noise_contrastive``.

    Raises:
        ValueError: if a value is below zero or no number.
    """

    def __init__(self, cfg: DampedAdagradConfig, params: Iterable[nn.Parameter]):
        super().__init__(cfg)
        start = check_not_negative(cfg.initial_accumulator, flag="--initial-accumulator")
        self._optimizer = Adagrad(params, initial_accumulator_value=start, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        return {
            "lr": self.cfg.lr[0],
            "weight_decay": check_not_negative(self.cfg.weight_decay, flag="--weight-decay"),
        }

    @property
    def supports_flat_params(self) -> bool:
        """Whether all weights may lie in one tensor, as they do with ``--fp16``: every one is updated by itself."""
        return True
