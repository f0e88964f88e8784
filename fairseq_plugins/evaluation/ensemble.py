"""Several language models as one, which averages their probabilities.

Shapes: * any.
"""

from typing import Sequence

from torch import Tensor

from fairseq_plugins.ops.ensemble import mean_log_probs


class NonFiniteLoss(ValueError):
    """A model's NLL is infinite or not a number."""


def average_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Log of the mean of the models' probabilities, (*) float64; ``log_probs`` holds (*) for each model."""
    return mean_log_probs([one.double() for one in log_probs])


def average_nll(nll: Sequence[Tensor]) -> Tensor:
    """NLL of the averaged probabilities, (*) float64 without gradient; ``nll`` holds (*) in nats for each model.

    Raises:
        NonFiniteLoss: if a model's NLL is not finite.
    """
    for number, one in enumerate(nll, start=1):
        finite = one.isfinite()
        if not finite.all():
            name = "the model" if len(nll) == 1 else f"model {number} of {len(nll)}"
            raise NonFiniteLoss(
                f"the loss of {name} is {float(one[~finite][0])}: its training diverged or its checkpoint is damaged; "
                "take another checkpoint"
            )
    return -average_log_probs([-one.detach() for one in nll])
