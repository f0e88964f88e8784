"""What an output layer says of the next words.

Shapes: B batch, T time, J experts, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Optional

from torch import Tensor

from fairseq_plugins.modules.recurrent_state import State


@dataclass
class Scores:
    """What an output layer returns: a distribution, or the loss of given targets.

    Attributes:
        log_probs: log P(v) of every word, (B, T, V), normalised, in float32 or wider; None where targets were given.
        loss: to minimise, a scalar in nats, summed with the weights of the tokens; None without targets.
        nll: -log P(target) of every token, (B, T), without smoothing, weight and gradient, and 0 where the weight is 0;
            None without targets, and for a loss of targets against noise.
        mixture_weights: prior pi of the softmaxes of a mixture, (B, T, J), or None.
        gate_state: state of the gate after the last token, empty for a gate without.
    """

    log_probs: Optional[Tensor] = None
    loss: Optional[Tensor] = None
    nll: Optional[Tensor] = None
    mixture_weights: Optional[Tensor] = None
    gate_state: State = field(default_factory=dict)

    @property
    def output(self) -> Tensor:
        """What a decoder returns to the host: the loss where targets were given, or else the log-probabilities."""
        output = self.log_probs if self.loss is None else self.loss
        assert output is not None
        return output
