"""Loss of a chunk of tokens with label smoothing and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gradient import LogitGradient


class SmoothedChunk:
    """The loss of a chunk with label smoothing, computed in place.

    The constructor overwrites the logits by their softmax, and :meth:`backward` this by the logits' gradient. Sums over
    several experts are of logarithms, exact where a probability underflows, and take another tensor as large, for the
    share of every expert in every P(v).

    Args:
        logits: z, (n * J, V), overwritten unless they are to be kept: then the softmax is another tensor as large.
        log_prior: log pi, (n, J).
        target: words to score, (n).
        label_smoothing: e, 0 < e < 1.

    Attributes:
        nll: -log P(target), (n).
        loss: (1 - e) NLL + e mean_v(-log P(v)), (n).
    """

    def __init__(self, *, logits: Tensor, log_prior: Tensor, target: Tensor, label_smoothing: float, keep_logits: bool):
        self.label_smoothing = label_smoothing
        self.targets = target.repeat_interleave(log_prior.size(1)).unsqueeze(-1)
        self.share: Optional[Tensor] = None
        target_logit = logits.gather(1, self.targets).view_as(log_prior)
        largest = logits.amax(dim=1).view_as(log_prior)
        mean_logit: Optional[Tensor] = None
        if log_prior.size(1) > 1:
            self.share = logits.clone().view(*log_prior.shape, -1)
        else:
            mean_logit = logits.mean(dim=1)
        self.probs = torch.softmax(logits, dim=1, out=torch.empty_like(logits) if keep_logits else logits)
        # log softmax(z)_v = (z_v - max z) + log max softmax(z): exact where softmax(z)_v underflows
        log_largest = self.probs.amax(dim=1).log().view_as(log_prior)
        joint = log_prior + (target_logit - largest + log_largest)
        log_prob = torch.logsumexp(joint, dim=1)
        self.target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = -log_prob
        log_scale = log_prior + log_largest - largest
        if self.share is not None:
            mean_log_prob = _mix(self.share, log_scale)
        else:
            assert mean_logit is not None
            mean_log_prob = mean_logit + log_scale.squeeze(1)
        self.loss = (1 - label_smoothing) * self.nll - label_smoothing * mean_log_prob

    def backward(self, weights: Tensor, share: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        """Gradients of the weighted loss by the logits and by log pi (n, J).

        ``share`` (n) is that of the mixture in the probability of the target, by default one.
        """
        target_weights = (1 - self.label_smoothing) * (weights if share is None else weights * share)
        on_target = target_weights.unsqueeze(-1) * self.target_share
        on_word = (self.label_smoothing / self.probs.size(1)) * weights
        if self.share is None:
            mass = on_target + self.label_smoothing * weights.unsqueeze(-1)
        else:
            mass = on_target + self.share.mul_(on_word.view(-1, 1, 1)).sum(dim=-1)
        d_logits = self.probs.mul_(mass.view(-1, 1))
        d_logits.sub_(on_word.unsqueeze(-1) if self.share is None else self.share.flatten(0, 1))
        d_logits.scatter_add_(1, self.targets, -on_target.view(-1, 1))
        return LogitGradient(d_logits), -mass


def _mix(shares: Tensor, log_scale: Tensor) -> Tensor:
    """mean_v log P(v), (n).

    Args:
        shares: the logits z, (n, J, V); overwritten by the share of every expert in every P(v).
        log_scale: log pi + log softmax(z) - z, (n, J).
    """
    shares.add_(log_scale.unsqueeze(-1))
    largest = shares.amax(dim=1)
    total = shares.sub_(largest.unsqueeze(1)).exp_().sum(dim=1)
    shares.div_(total.unsqueeze(1))
    return largest.add_(total.log_()).mean(dim=-1)
