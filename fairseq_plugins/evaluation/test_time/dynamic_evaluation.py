"""Dynamic evaluation: weights follow the text that has been scored (Krause et al. 2018)."""

from dataclasses import dataclass
from typing import Dict, List, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import ScoredWindow

RULES = ("rms", "sgd")
"""What a step divides the gradients by: their root mean squares over the training text, or nothing."""


@dataclass(frozen=True)
class DynamicOptions:
    """How weights follow the text.

    Attributes:
        rule: a value of :data:`RULES`.
        rate: eta, at least 0.
        decay: lambda, at least 0.
        epsilon: what is added to root mean squares, above 0.
        segment: tokens of a row between two steps.
        rows: that the training text is cut into for its statistics.
    """

    rule: str
    rate: float
    decay: float
    epsilon: float
    segment: int
    rows: int

    @property
    def changes_weights(self) -> bool:
        """Whether any step goes anywhere; decay alone pulls to where the weights are."""
        return self.rate > 0


class AdaptingWeights:
    """The weights of a model on their way through a text; all of them adapt, frozen ones as well.

    theta <- theta + lambda R (theta_0 - theta) - eta grad / (RMS + epsilon), with the trained weights theta_0. RMS is
    the root of the mean squared gradients over the training text, R is RMS over a, the mean over tensors of a tensor's
    mean RMS, and at most 1 / lambda. With the rule "sgd" R and RMS + epsilon are 1.

    Args:
        model: with the trained weights.
        options: the rule and its numbers.
        mean_squares: of the gradients, by the parameter's name; not read by "sgd".
    """

    def __init__(self, model: FairseqLanguageModel, options: DynamicOptions, *, mean_squares: Dict[str, Tensor]):
        named = dict(model.named_parameters())
        self.parameters: List[Tensor] = list(named.values())
        self._trained = [parameter.detach().clone() for parameter in self.parameters]
        if options.rule == "sgd":
            self._pulls = [parameter.new_tensor(options.decay) for parameter in self._trained]
            self._rates = [parameter.new_tensor(options.rate) for parameter in self._trained]
            return
        roots = [mean_squares[name].to(parameter).sqrt() for name, parameter in named.items()]
        mean_root = torch.stack([root.mean() for root in roots]).mean()
        self._pulls = [(options.decay * root / mean_root).clamp(max=1).detach() for root in roots]
        self._rates = [(options.rate / (root + options.epsilon)).detach() for root in roots]

    @torch.no_grad()
    def follow(self, gradients: Sequence[Tensor]) -> None:
        """Take a step; the gradients are those of the mean NLL of the segment before."""
        for parameter, trained, pull, rate, gradient in zip(
            self.parameters, self._trained, self._pulls, self._rates, gradients
        ):
            parameter.lerp_(trained, pull).addcmul_(gradient, rate, value=-1)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the trained weights back."""
        for parameter, trained in zip(self.parameters, self._trained):
            parameter.copy_(trained)


def follow_window(weights: Sequence[AdaptingWeights], window: ScoredWindow) -> None:
    """Let each model's weights follow a window, by the gradient of its own mean NLL."""
    for one, scores in zip(weights, window.scores):
        loss = scores.output / window.target.numel()
        one.follow(torch.autograd.grad(loss, one.parameters, materialize_grads=True))
