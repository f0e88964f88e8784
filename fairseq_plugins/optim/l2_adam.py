"""Adam with weight decay in the gradient (Kingma & Ba 2015), where the host's is decoupled from it."""

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable

from fairseq.optim import FairseqOptimizer, register_optimizer
from torch import nn
from torch.optim import Adam

from fairseq_plugins.flags.values import check_not_negative
from fairseq_plugins.host.flag_values import parse_betas
from fairseq_plugins.optim.weight_decay import WeightDecayConfig

FUSED_ON = ("cpu", "cuda")
"""Devices where torch updates all parameters in one pass."""


@dataclass
class L2AdamConfig(WeightDecayConfig):
    """Flags of ``--optimizer l2_adam``."""

    adam_betas: str = field(default="(0.9, 0.999)", metadata={"help": "decay of the means of gradients and squares"})
    adam_eps: float = field(default=1e-8, metadata={"help": "added to the root of the mean square"})


@register_optimizer("l2_adam", dataclass=L2AdamConfig)
class L2Adam(FairseqOptimizer):
    """Adam that minimises the loss plus half the weight decay times the squared norm of the weights.

    Decay passes through Adam's means like any gradient. In the host's ``--optimizer adam`` it shrinks the weights apart
    from the gradient (AdamW).

    Raises:
        ValueError: if ``--adam-betas`` are not two numbers from 0 on, below 1, or another value is below zero.
    """

    def __init__(self, cfg: L2AdamConfig, params: Iterable[nn.Parameter]):
        super().__init__(cfg)
        params = list(params)
        fused = all(param.device.type in FUSED_ON for param in params)
        self._optimizer = Adam(params, fused=fused, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        return {
            "lr": self.cfg.lr[0],
            "betas": parse_betas(self.cfg.adam_betas),
            "eps": check_not_negative(self.cfg.adam_eps, flag="--adam-eps"),
            "weight_decay": check_not_negative(self.cfg.weight_decay, flag="--weight-decay"),
        }

    @property
    def supports_flat_params(self) -> bool:
        """Whether all weights may lie in one tensor, as they do with ``--fp16``: every one is updated by itself."""
        return True
