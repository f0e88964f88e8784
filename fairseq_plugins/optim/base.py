"""Base class and flags of the optimisers with weight decay."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from omegaconf import II

from fairseq_plugins.options import check_not_negative


@dataclass
class WeightDecayConfig(FairseqDataclass):
    """Flags of every optimiser that adds weight decay to the gradient."""

    weight_decay: float = field(
        default=0.0, metadata={"help": "this multiple of each weight is added to its gradient after clipping"}
    )
    lr: List[float] = II("optimization.lr")


class ConfiguredOptimizer(FairseqOptimizer):
    """An optimiser that takes its hyper-parameters from the flags of the run, also when it resumes a checkpoint."""

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        weight_decay = check_not_negative(self.cfg.weight_decay, flag="--weight-decay")
        return {"lr": self.cfg.lr[0], "weight_decay": weight_decay}

    @property
    def supports_flat_params(self) -> bool:
        """True, because updates are elementwise: ``--fp16`` may flatten all weights into one vector."""
        return True

    def load_state_dict(self, state_dict: Dict[str, Any], optimizer_overrides: Optional[Dict[str, Any]] = None) -> None:
        """Resume from a checkpoint. The scheduler sets the learning rate."""
        given = {name: value for name, value in self.optimizer_config.items() if name != "lr"}
        super().load_state_dict(state_dict, {**given, **(optimizer_overrides or {})})
