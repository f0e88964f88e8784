"""Margins by which adversarial training lowers the logits of target words (Wang, Gong & Liu 2019).

Where w_y . k_j > 0, the label of a target y is changed: the logit becomes (w_y + dw_j) . k_j with
dw_j = -eps |w_y| k_j / |k_j|, which lowers it by the margin eps |w_y| |k_j|. The gradient treats dw_j as a constant, so
the margin has a gradient with respect to k_j and none with respect to w_y.

Shapes: N tokens, J experts, d width of their hidden states, V words.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.ops.mixture_chunk import target_places


class TargetMargins(NamedTuple):
    """Margins that are subtracted from the logits of the targets, one for each token and expert.

    Attributes:
        target: words, (N).
        values: margins, (N, J), in float32 or wider.
        slopes: each margin divided by |k_j|^2, (N, J): the gradient of a margin by k_j is its slope times k_j.
    """

    target: Tensor
    values: Tensor
    slopes: Tensor

    def subtract(self, logits: Tensor) -> None:
        """Lower the targets' logits in the logits of all words, (N * J, V), in place."""
        places = self._places(logits)
        lowered = logits.take(places) - self.values.flatten()
        logits.view(-1)[places] = lowered.to(logits.dtype)

    def at_targets(self, logits: Tensor) -> Tensor:
        """The targets' elements, (N, J), of a tensor for all words, (N * J, V)."""
        return logits.take(self._places(logits)).view_as(self.values)

    def latent_gradient(self, d_logits: Tensor, latents: Tensor) -> Tensor:
        """The margins' part of dL/dk, (N, J, d), given the gradient by the targets' lowered logits, (N, J)."""
        return -(d_logits * self.slopes).unsqueeze(-1) * latents

    def _places(self, logits: Tensor) -> Tensor:
        return target_places(self.target, num_experts=self.values.size(1), vocab_size=logits.size(1))


def adversarial_margins(latents: Tensor, weight: Tensor, target: Tensor, *, epsilon: float) -> TargetMargins:
    """The margins eps |w_y| |k_j| where w_y . k_j > 0, otherwise 0.

    The worst change of w_y by a vector of length eps |w_y| lowers the target's logit by this margin.

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
