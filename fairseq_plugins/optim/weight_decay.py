"""Weight decay that is a part of the gradient."""

from dataclasses import dataclass, field
from typing import List

from fairseq.dataclass import FairseqDataclass
from omegaconf import II


@dataclass
class WeightDecayConfig(FairseqDataclass):
    """Flags of every optimiser that adds weight decay to the gradient."""

    weight_decay: float = field(
        default=0.0, metadata={"help": "coefficient of all weights, added to their gradient after clipping"}
    )
    lr: List[float] = II("optimization.lr")
