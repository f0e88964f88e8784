"""Loss of a chunk of tokens and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.

r_j is the share of expert j in P(target), e the rate of label smoothing.
"""

import math
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_plugins.ops.label_smoothing import LabelSmoothing
from fairseq_plugins.ops.logit_gradient import LogitGradient
from fairseq_plugins.ops.precision import SMALLEST_PROBABILITY, accumulation_dtype, is_normal
from fairseq_plugins.ops.target_margins import target_places


class ChunkGradient(NamedTuple):
    """Gradients of a chunk's weighted loss.

    Attributes:
        logits: by the logits but for what is the same for all words of a row.
        uniform: V times what is left to subtract from all words of a row, e pi, (n, J); None without label smoothing.
        log_prior: by log pi, (n, J).
    """

    logits: LogitGradient
    uniform: Optional[Tensor]
    log_prior: Tensor


class MixtureChunk:
    """The loss of a chunk, (1 - e) NLL + e sum_j pi_j mean_v(-log p_j(v)), computed in place.

    The constructor overwrites the logits by their softmax, each row up to a factor, and :meth:`backward` this by the
    logits' gradient. The softmax has the type of the logits, which may be of 16 bits; everything else has that of
    ``log_prior``. Rounding does no harm to confident predictions: P(target) is p / (p + q) and the gradient at the
    target -q / (p + q) with the sum q of the other words' elements, so that neither is lost where the other is almost
    one. With label smoothing the gradient is ((1 - e) r_j + e pi_j) p_j(v) - (1 - e) r_j [v = target] - e pi_j / V.

    Args:
        logits: z, (n * J, V), overwritten unless they are to be kept: then the softmax is another tensor as large.
        log_prior: log pi, (n, J).
        target: words to score, (n).
        keep_logits: whether the logits are needed later.
        logits_of: from indices of tokens (m) to their logits z (m, J, V), for the tokens whose P(target) may have been
            rounded to zero; finding them waits for the device. None computes all by the largest logits of the rows,
            two more passes over the chunk; so does label smoothing, but for a chunk of 16 bits.
        smoothing: e and the means of the logits, or None without label smoothing.

    Attributes:
        nll: -log P(target), (n).
        loss: as above, (n).
    """

    def __init__(
        self,
        *,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        keep_logits: bool,
        logits_of: Optional[Callable[[Tensor], Tensor]],
        smoothing: Optional[LabelSmoothing] = None,
    ):
        self._targets = target_places(target, num_experts=log_prior.size(1), vocab_size=logits.size(1))
        self._dtype, self._num_experts = log_prior.dtype, log_prior.size(1)
        self._probs = torch.empty_like(logits) if keep_logits else logits
        self._smoothing = smoothing
        log_softmax = self._by_maxima(logits) if logits_of is None else self._by_probabilities(logits, logits_of)
        joint = log_prior + log_softmax.view_as(log_prior)
        if logits_of is not None:
            smallest = SMALLEST_PROBABILITY[accumulation_dtype(logits)]
            _look_again(joint, log_prior, target, logits_of, smallest=smallest)
        log_prob = torch.logsumexp(joint, dim=1)
        self._target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = self.loss = -log_prob
        if smoothing is not None:
            self._prior, self._spread = log_prior.exp(), self._log_sum.view_as(log_prior) - smoothing.mean_logits
            smoothed = (self._prior * self._spread).sum(dim=1)
            self.loss = (1 - smoothing.rate) * self.nll + smoothing.rate * smoothed

    def backward(self, weights: Tensor, share: Optional[Tensor] = None) -> ChunkGradient:
        """Gradients of the weighted loss; ``share`` (n) is that of the mixture in P(target), by default one."""
        on_target = (weights if share is None else weights * share).unsqueeze(-1) * self._target_share
        if self._smoothing is None:
            self._write_targets(-self._rest)
            return ChunkGradient(LogitGradient(self._probs, on_target.view(-1, 1) / self._total), None, -on_target)
        on_target = (1 - self._smoothing.rate) * on_target
        on_words = (self._smoothing.rate * weights).unsqueeze(-1) * self._prior
        mass = on_target + on_words
        share_of_words, share_of_target = ((part / mass).nan_to_num(0.0).view(-1, 1) for part in (on_words, on_target))
        self._write_targets(share_of_words * self._on_target - share_of_target * self._rest)
        gradient = LogitGradient(self._probs, mass.view(-1, 1) / self._total)
        return ChunkGradient(gradient, on_words, on_words * self._spread - on_target)

    def _by_maxima(self, logits: Tensor) -> Tensor:
        """Take the softmax; log softmax of the targets, (n * J, 1), exact where the softmax underflows."""
        largest_logit = logits.amax(dim=1, keepdim=True).to(self._dtype)
        above_largest = logits.take(self._targets).unsqueeze(1).to(self._dtype) - largest_logit
        torch.softmax(logits, dim=1, out=self._probs)
        largest = self._probs.amax(dim=1, keepdim=True).to(self._dtype)
        self._split()
        below_sum = (largest / self._total).log()
        self._log_sum = largest_logit - below_sum
        return above_largest + below_sum

    def _by_probabilities(self, logits: Tensor, logits_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Take the softmax; log softmax of the targets, (n * J, 1), -inf where the softmax underflows."""
        if logits.dtype == self._dtype:
            largest_logit = None if self._smoothing is None else logits.amax(dim=1, keepdim=True)
            torch.softmax(logits, dim=1, out=self._probs)
            on_target = self._split()
            if largest_logit is not None:
                largest = torch.maximum(self._probs.amax(dim=1, keepdim=True), on_target)
                self._log_sum = largest_logit - (largest / self._total).log()
            return (on_target / self._total).log()
        torch.exp(logits, out=self._probs)  # the softmax up to a factor of the row, in half the time
        on_target = self._split()
        if not is_normal(self._total).all():
            every_token = torch.arange(len(logits) // self._num_experts, device=logits.device)
            again = logits_of(every_token).flatten(0, 1)
            if self._smoothing is not None:
                return self._by_maxima(again)
            torch.softmax(again, dim=1, out=self._probs)
            on_target = self._split()
        self._log_sum = self._total.log()
        return (on_target / self._total).log()

    def _split(self) -> Tensor:
        """The targets' elements, (n * J, 1), which are overwritten by zero; keeps them and the sums of the others."""
        self._on_target = self._probs.take(self._targets).unsqueeze(1).to(self._dtype)
        self._write_targets(torch.zeros_like(self._on_target))
        self._rest = self._probs.sum(dim=1, keepdim=True).to(self._dtype)
        self._total = self._on_target + self._rest
        return self._on_target

    def _write_targets(self, values: Tensor) -> None:
        """Overwrite the targets' elements by ``values`` (n * J, 1); in 16 bits, scatter_ would copy the chunk."""
        self._probs.view(-1)[self._targets] = values.squeeze(1).to(self._probs.dtype)


def _look_again(
    joint: Tensor, log_prior: Tensor, target: Tensor, logits_of: Callable[[Tensor], Tensor], *, smallest: float
) -> None:
    """Overwrite log pi + log softmax, (n, J), of tokens whose P(target) is below the ``smallest`` exact one."""
    improbable = (torch.logsumexp(joint, dim=1) < math.log(smallest)).nonzero().squeeze(-1)
    if improbable.numel():
        log_softmax = torch.log_softmax(logits_of(improbable), dim=-1, dtype=joint.dtype)
        words = target[improbable].view(-1, 1, 1).expand(-1, joint.size(1), 1)
        joint[improbable] = log_prior[improbable] + log_softmax.gather(2, words).squeeze(2)
