"""Margins by which adversarial training lowers the logits of target words (Wang, Gong & Liu 2019).

The logit of a target y is that of a changed label, (w_y + dw_j) . k_j with dw_j = -eps |w_y| k_j / |k_j|, where
w_y . k_j > 0. The change dw_j is a constant of the gradient, but the k_j that it is multiplied by is not: the margin
eps |w_y| |k_j| has a gradient by k_j and none by w_y.

Shapes: N tokens, J experts, d latent width, V vocabulary. A row is one expert of one token: N * J rows.
"""

from typing import NamedTuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.precision import accumulation_dtype


class TargetMargins(NamedTuple):
    """How much lower the logit of each token's target is, for every expert.

    Attributes:
        target: words, (N).
        values: margins, (N, J), in float32 or wider.
        slopes: each margin divided by |k_j|^2, (N, J): the gradient of a margin by k_j is its slope times k_j.
    """

    target: Tensor
    values: Tensor
    slopes: Tensor

    def of_tokens(self, chosen: Union[slice, Tensor]) -> "TargetMargins":
        """Those of a chunk."""
        return TargetMargins(self.target[chosen], self.values[chosen], self.slopes[chosen])

    def subtract(self, logits: Tensor) -> None:
        """Lower the targets' logits among those of all words, (N * J, V), in place."""
        places = self._places(logits)
        lowered = logits.take(places) - self.values.flatten()
        logits.view(-1)[places] = lowered.to(logits.dtype)

    def of_targets(self, logits: Tensor) -> Tensor:
        """The elements of the targets among those of all words, (N * J, V): (N, J)."""
        return logits.take(self._places(logits)).view_as(self.values)

    def latent_gradient(self, d_logits: Tensor, latents: Tensor) -> Tensor:
        """The gradient by k that the margins add, (N, J, d), from that by the targets' lowered logits (N, J)."""
        return -(d_logits * self.slopes).unsqueeze(-1) * latents

    def _places(self, logits: Tensor) -> Tensor:
        return target_places(self.target, num_experts=self.values.size(1), vocab_size=logits.size(1))


def adversarial_margins(latents: Tensor, weight: Tensor, target: Tensor, *, epsilon: float) -> TargetMargins:
    """eps |w_y| |k_j| where w_y . k_j > 0, and else 0: what the worst change of w_y by eps |w_y| takes off its logit.

    Args:
        latents: k, (N, J, d).
        weight: W, (V, d).
        target: y, (N); a word outside the vocabulary counts as the nearest inside.
        epsilon: eps, 0 <= eps < 1.
    """
    target = target.clamp(0, weight.size(0) - 1)
    dtype = accumulation_dtype(latents)
    rows = weight.index_select(0, target).to(dtype)
    products = torch.bmm(latents.to(dtype), rows.unsqueeze(2)).squeeze(2)
    lengths = torch.linalg.vector_norm(latents, dim=2, dtype=dtype)
    changes = epsilon * torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    nothing = (products <= 0) | (lengths == 0)
    return TargetMargins(
        target, (lengths * changes).masked_fill_(nothing, 0), (changes / lengths).masked_fill_(nothing, 0)
    )


def target_places(target: Tensor, *, num_experts: int, vocab_size: int) -> Tensor:
    """Where the targets' elements are in the flattened scores of all words, (N * J): target (N)."""
    words = target.repeat_interleave(num_experts)
    return torch.arange(0, words.numel() * vocab_size, vocab_size, device=words.device) + words
