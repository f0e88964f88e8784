"""Loss of a chunk of tokens and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.
"""

import math
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gradient import LogitGradient
from fairseq_plugins.ops.precision import SMALLEST_PROBABILITY, accumulation_dtype, is_normal
from fairseq_plugins.ops.target_margins import target_places


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
        self._targets = target_places(target, num_experts=log_prior.size(1), vocab_size=logits.size(1))
        self._dtype, self._num_experts = log_prior.dtype, log_prior.size(1)
        self._probs = torch.empty_like(logits) if keep_logits else logits
        log_softmax = self._by_maxima(logits) if logits_of is None else self._by_probabilities(logits, logits_of)
        joint = log_prior + log_softmax.view_as(log_prior)
        if logits_of is not None:
            smallest = SMALLEST_PROBABILITY[accumulation_dtype(logits)]
            _look_again(joint, log_prior, target, logits_of, smallest=smallest)
        log_prob = torch.logsumexp(joint, dim=1)
        self.target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = self.loss = -log_prob

    def backward(self, weights: Tensor, share: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        """Gradients of the weighted loss by the logits and by log pi (n, J).

        ``share`` (n) is that of the mixture in the probability of the target, by default one.
        """
        mass = (weights if share is None else weights * share).unsqueeze(-1) * self.target_share
        self._write_targets(-self._rest)
        return LogitGradient(self._probs, mass.view(-1, 1) / self._total), -mass

    def _by_maxima(self, logits: Tensor) -> Tensor:
        """Take the softmax; log softmax of the targets, (n * J, 1), exact where the softmax underflows."""
        above_largest = logits.take(self._targets).unsqueeze(1).to(self._dtype) - logits.amax(dim=1, keepdim=True)
        torch.softmax(logits, dim=1, out=self._probs)
        largest = self._probs.amax(dim=1, keepdim=True).to(self._dtype)
        self._split()
        return above_largest + (largest / self._total).log()

    def _by_probabilities(self, logits: Tensor, logits_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Take the softmax; log softmax of the targets, (n * J, 1), -inf where the softmax underflows."""
        if logits.dtype == self._dtype:
            torch.softmax(logits, dim=1, out=self._probs)
            return (self._split() / self._total).log()
        torch.exp(logits, out=self._probs)  # the softmax up to a factor of the row, in half the time
        on_target = self._split()
        if not is_normal(self._total).all():
            every_token = torch.arange(len(logits) // self._num_experts, device=logits.device)
            torch.softmax(logits_of(every_token).flatten(0, 1), dim=1, out=self._probs)
            on_target = self._split()
        return (on_target / self._total).log()

    def _split(self) -> Tensor:
        """The targets' elements, (n * J, 1), which are overwritten by zero; keeps the sums of the others."""
        on_target = self._probs.take(self._targets).unsqueeze(1).to(self._dtype)
        self._write_targets(torch.zeros_like(on_target))
        self._rest = self._probs.sum(dim=1, keepdim=True).to(self._dtype)
        self._total = on_target + self._rest
        return on_target

    def _write_targets(self, values: Tensor) -> None:
        """Overwrite the targets' elements by ``values`` (n * J, 1); in 16 bits, scatter_ would copy the chunk."""
        self._probs.put_(self._targets, values.squeeze(1).to(self._probs.dtype))


def _look_again(
    joint: Tensor, log_prior: Tensor, target: Tensor, logits_of: Callable[[Tensor], Tensor], *, smallest: float
) -> None:
    """Overwrite log pi + log softmax, (n, J), of tokens whose P(target) is below the ``smallest`` exact one."""
    improbable = (torch.logsumexp(joint, dim=1) < math.log(smallest)).nonzero().squeeze(-1)
    if improbable.numel():
        log_softmax = torch.log_softmax(logits_of(improbable), dim=-1, dtype=joint.dtype)
        words = target[improbable].view(-1, 1, 1).expand(-1, joint.size(1), 1)
        joint[improbable] = log_prior[improbable] + log_softmax.gather(2, words).squeeze(2)
