"""Loss of a chunk of tokens of several experts with label smoothing, and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gradient import LogitGradient
from fairseq_plugins.ops.precision import SMALLEST_PROBABILITY


class SmoothedMixtureChunk:
    """What :class:`~fairseq_plugins.ops.smoothed_chunk.SmoothedChunk` computes, in less than half of its time.

    The probabilities are mixed as such, P(v) = sum_j pi_j p_j(v), so that every logit is exponentiated once. The loss
    is -sum_v w_v log P(v) with w_v = e / V, and 1 - e more at the target; its gradient by a logit is
    pi_j p_j(v) (sum_u p_j(u) r_u - r_v) with r_v = w_v / P(v). It takes the place of p_j; two chunks of one expert are
    all the memory besides.

    The arguments are those of ``SmoothedChunk``, with logits in float32 or wider; so are ``nll`` and ``loss``.

    Attributes:
        is_exact: whether all P(v) are; where one may have been rounded to zero nothing here is to be used. Finding out
            waits for the device.
    """

    def __init__(self, *, logits: Tensor, log_prior: Tensor, target: Tensor, label_smoothing: float, keep_logits: bool):
        self._label_smoothing, self._prior = label_smoothing, log_prior.exp()
        self._targets = target.unsqueeze(-1)
        rows = torch.softmax(logits, dim=1, out=torch.empty_like(logits) if keep_logits else logits)
        self._probs = rows.view(*log_prior.shape, -1)
        self._mixture = torch.bmm(self._prior.unsqueeze(1), self._probs).squeeze(1)
        self.is_exact = bool(self._mixture.amin() >= SMALLEST_PROBABILITY[self._mixture.dtype])
        log_probs = self._mixture.log()
        self.nll = -log_probs.gather(1, self._targets).squeeze(1)
        self.loss = (1 - label_smoothing) * self.nll - label_smoothing * log_probs.mean(dim=1)

    def backward(self, weights: Tensor, share: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        """Gradients of the weighted loss by the logits and by log pi (n, J).

        ``share`` (n) is that of the mixture in the probability of the target, by default one.
        """
        on_target = (1 - self._label_smoothing) * (weights if share is None else weights * share)
        on_word = (self._label_smoothing / self._probs.size(2)) * weights
        at_target = (on_target + on_word).unsqueeze(1) / self._mixture.gather(1, self._targets)
        ratio = torch.div(on_word.unsqueeze(1), self._mixture, out=self._mixture).scatter_(1, self._targets, 0.0)
        # the target's term is far larger than the others, which would be rounded where they are added to it; a row
        # times a matrix takes a sixth of what a matrix times a column does on a CPU
        others = torch.bmm(ratio.unsqueeze(1), self._probs.transpose(1, 2)).squeeze(1)
        targets = self._targets.unsqueeze(1).expand(-1, self._probs.size(1), 1)
        mass = self._prior * (others + at_target * self._probs.gather(2, targets).squeeze(2))
        ratio.scatter_(1, self._targets, at_target)
        factors = torch.empty_like(ratio)
        for j in range(self._probs.size(1)):
            torch.mul(ratio, -self._prior[:, j, None], out=factors).add_(mass[:, j, None])
            self._probs[:, j].mul_(factors)
        return LogitGradient(self._probs.flatten(0, 1)), -mass
