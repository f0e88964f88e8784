"""Loss of a chunk of tokens and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.
"""

import math
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gradient import LogitGradient
from fairseq_plugins.ops.precision import SMALLEST_PROBABILITY


class MixtureChunk:
    """The loss of a chunk, computed in place.

    The constructor overwrites the logits by their softmax, each row up to a factor, and :meth:`backward` this by the
    logits' gradient. The softmax has the type of the logits, which may be of 16 bits; everything else has that of
    ``log_prior``. Rounding does no harm to confident predictions: P(target) is p / (p + r) and the gradient at the
    target -r / (p + r) with the sum r of the other words' elements, so that neither is lost where the other is almost
    one.

    Args:
        logits: z, (n * J, V), overwritten unless they are to be kept: then the softmax is another tensor as large.
        log_prior: log pi, (n, J).
        target: words to score, (n).
        keep_logits: whether the logits are needed later.
        logits_of: from indices of tokens (m) to their logits z (m, J, V), for the tokens whose P(target) may have been
            rounded to zero; finding them waits for the device. None computes all by the largest logits of the rows,
            two more passes over the chunk.

    Attributes:
        nll: -log P(target), (n).
        loss: the same.
    """

    def __init__(
        self,
        *,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        keep_logits: bool,
        logits_of: Optional[Callable[[Tensor], Tensor]],
    ):
        dtype = log_prior.dtype
        words = target.repeat_interleave(log_prior.size(1))
        self.targets = torch.arange(0, logits.numel(), logits.size(1), device=logits.device) + words
        above_largest: Optional[Tensor] = None
        if logits_of is None:
            above_largest = logits.take(self.targets).unsqueeze(1).to(dtype) - logits.amax(dim=1, keepdim=True)
        self.probs = torch.empty_like(logits) if keep_logits else logits
        narrow = logits_of is not None and logits.dtype != dtype
        if narrow:  # e^z is the softmax up to a factor of the row, in half the time
            torch.exp(logits, out=self.probs)
        else:
            torch.softmax(logits, dim=1, out=self.probs)
        largest = None if above_largest is None else self.probs.amax(dim=1, keepdim=True).to(dtype)
        on_target, self.rest = self._split(dtype)
        if narrow and not _within_range(on_target + self.rest):
            assert logits_of is not None
            again = logits_of(torch.arange(len(target), device=target.device)).flatten(0, 1)
            torch.softmax(again, dim=1, out=self.probs)
            on_target, self.rest = self._split(dtype)
        self.total = on_target + self.rest
        if above_largest is None or largest is None:
            log_softmax = (on_target / self.total).log()
        else:  # exact where the softmax underflows
            log_softmax = above_largest + (largest / self.total).log()
        joint = log_prior + log_softmax.view_as(log_prior)
        log_prob = torch.logsumexp(joint, dim=1)
        if logits_of is not None:
            improbable = (log_prob < math.log(SMALLEST_PROBABILITY[dtype])).nonzero().squeeze(-1)
            if improbable.numel():
                log_softmax = torch.log_softmax(logits_of(improbable), dim=-1, dtype=dtype)
                improbable_words = target[improbable].view(-1, 1, 1).expand(-1, log_prior.size(1), 1)
                joint[improbable] = log_prior[improbable] + log_softmax.gather(2, improbable_words).squeeze(2)
                log_prob[improbable] = torch.logsumexp(joint[improbable], dim=1)
        self.target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = self.loss = -log_prob

    def backward(self, weights: Tensor) -> Tuple[LogitGradient, Tensor]:
        """Gradients of the weighted loss by the logits and by log pi (n, J)."""
        mass = weights.unsqueeze(-1) * self.target_share
        self._write_targets(-self.rest)
        return LogitGradient(self.probs, mass.view(-1, 1) / self.total), -mass

    def _split(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """The targets' elements, which are overwritten by zero, and the sums of the others, both (n * J, 1)."""
        on_target = self.probs.take(self.targets).unsqueeze(1).to(dtype)
        self._write_targets(torch.zeros_like(on_target))
        return on_target, self.probs.sum(dim=1, keepdim=True).to(dtype)

    def _write_targets(self, values: Tensor) -> None:
        """Overwrite the targets' elements by ``values`` (n * J, 1); in 16 bits, scatter_ would copy the chunk."""
        self.probs.put_(self.targets, values.squeeze(1).to(self.probs.dtype))


def _within_range(totals: Tensor) -> bool:
    """Whether sums of e^z are far from the ends of the numbers."""
    return bool(((totals > 1e-30) & (totals < 1e30)).all())
