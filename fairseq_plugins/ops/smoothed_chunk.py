"""Loss of a chunk of tokens with label smoothing and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gradient import LogitGradient


class SmoothedChunk:
    """The loss of a chunk with label smoothing, computed in place.

    The labels of every expert are smoothed: with the softmaxes p_j, the loss is

        (1 - e) NLL + e sum_j pi_j mean_v(-log p_j(v)),

    and its gradient by a logit, with the share r_j of expert j in P(target),

        ((1 - e) r_j + e pi_j) p_j(v) - (1 - e) r_j [v = target] - e pi_j / V.

    The constructor overwrites the logits by their softmax, and :meth:`backward` this by the logits' gradient. All sums
    over experts are of logarithms, exact where a probability underflows.

    Args:
        logits: z, (n * J, V), overwritten unless they are to be kept: then the softmax is another tensor as large.
        log_prior: log pi, (n, J).
        target: words to score, (n).
        label_smoothing: e, 0 < e < 1.
        keep_logits: whether the logits are needed later.

    Attributes:
        nll: -log P(target), (n).
        loss: as above, (n).
    """

    def __init__(self, *, logits: Tensor, log_prior: Tensor, target: Tensor, label_smoothing: float, keep_logits: bool):
        self._label_smoothing, self._prior = label_smoothing, log_prior.exp()
        self._targets = target.repeat_interleave(log_prior.size(1)).unsqueeze(-1)
        target_logit = logits.gather(1, self._targets).view_as(log_prior)
        mean_logit = logits.mean(dim=1).view_as(log_prior)
        largest = logits.amax(dim=1).view_as(log_prior)
        self._probs = torch.softmax(logits, dim=1, out=torch.empty_like(logits) if keep_logits else logits)
        # log softmax(z)_v = (z_v - max z) + log max softmax(z): exact where softmax(z)_v underflows
        log_largest = self._probs.amax(dim=1).log().view_as(log_prior)
        joint = log_prior + (target_logit - largest + log_largest)
        log_prob = torch.logsumexp(joint, dim=1)
        self._target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = -log_prob
        self._spread = largest - log_largest - mean_logit  # mean_v(-log p_j(v)), (n, J)
        self.loss = (1 - label_smoothing) * self.nll + label_smoothing * (self._prior * self._spread).sum(dim=1)

    def backward(self, weights: Tensor, share: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        """Gradients of the weighted loss by the logits and by log pi (n, J).

        ``share`` (n) is that of the mixture in the probability of the target, by default one.
        """
        target_weights = (1 - self._label_smoothing) * (weights if share is None else weights * share)
        on_target = target_weights.unsqueeze(-1) * self._target_share
        on_words = (self._label_smoothing * weights).unsqueeze(-1) * self._prior
        rows_on_target, rows_on_words = on_target.view(-1, 1), on_words.view(-1, 1)
        prob, one_word = self._probs.gather(1, self._targets), 1 / self._probs.size(1)
        at_target = rows_on_target * (prob - 1) + rows_on_words * (prob - one_word)  # exact where prob is almost 1
        d_logits = self._probs.mul_(rows_on_target + rows_on_words).sub_(rows_on_words * one_word)
        d_logits.scatter_(1, self._targets, at_target)
        return LogitGradient(d_logits), on_words * self._spread - on_target
