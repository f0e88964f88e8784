"""Margins by which adversarial training lowers the logits of target words (Wang, Gong & Liu 2019).

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
    """

    target: Tensor
    values: Tensor

    def of_tokens(self, chosen: Union[slice, Tensor]) -> "TargetMargins":
        """Those of a chunk."""
        return TargetMargins(self.target[chosen], self.values[chosen])

    def subtract(self, logits: Tensor) -> None:
        """Lower the targets' logits among those of all words, (N * J, V), in place."""
        places = target_places(self.target, num_experts=self.values.size(1), vocab_size=logits.size(1))
        lowered = logits.take(places) - self.values.flatten()
        logits.view(-1)[places] = lowered.to(logits.dtype)


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
    margins = lengths * (epsilon * torch.linalg.vector_norm(rows, dim=1, keepdim=True))
    return TargetMargins(target, margins.masked_fill_(products <= 0, 0))


def target_places(target: Tensor, *, num_experts: int, vocab_size: int) -> Tensor:
    """Where the targets' elements are in the flattened scores of all words, (N * J): target (N)."""
    words = target.repeat_interleave(num_experts)
    return torch.arange(0, words.numel() * vocab_size, vocab_size, device=words.device) + words
