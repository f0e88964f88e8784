"""Noise-contrastive estimation: logits of chosen words only, and the loss.

Shapes: N tokens, K labels or noise words of a token, U labels, C width.
"""

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

TOKENS_AT_ONCE = 64
"""Tokens whose labels are copied side by side at a time on a CPU, where they stay in its cache."""


def chosen_logits(hidden: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
    """Inner products z_nk = h_n . l_c(n,k) of hidden states with chosen labels.

    The cost does not depend on the number of labels. No tensor of tokens x chosen labels x width is held on a CPU, nor
    in a backward pass.

    Args:
        hidden: h, (N, C).
        labels: l, (U, C), of the type of h.
        chosen: c, (N, K), int64, 0 <= c < U.

    Returns:
        (N, K), differentiable once.
    """
    return _ChosenLogits.apply(hidden, labels, chosen)


def _products(hidden: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
    num_tokens = TOKENS_AT_ONCE if hidden.device.type == "cpu" else max(1, len(hidden))
    products = [
        torch.bmm(F.embedding(some, labels), h.unsqueeze(-1)).squeeze(-1)
        for some, h in zip(chosen.split(num_tokens), hidden.split(num_tokens))
    ]
    return torch.cat(products)


class _ChosenLogits(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, hidden: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, labels, chosen)
        return _products(hidden, labels, chosen)

    @staticmethod
    @torch.autograd.function.once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor], None]:
        hidden, labels, chosen = ctx.saved_tensors
        d_hidden = d_labels = None
        if ctx.needs_input_grad[0]:
            d_hidden = F.embedding_bag(chosen, labels, mode="sum", per_sample_weights=gradient.contiguous())
        if ctx.needs_input_grad[1]:
            d_labels = _label_gradient(gradient, hidden, chosen, num_labels=len(labels))
        return d_hidden, d_labels, None


def _label_gradient(gradient: Tensor, hidden: Tensor, chosen: Tensor, *, num_labels: int) -> Tensor:
    """For each label the sum of h times its gradient over the tokens that chose the label, (U, C)."""
    by_label = torch.argsort(chosen.flatten(), stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=num_labels)
    return F.embedding_bag(
        by_label // chosen.size(1),
        hidden,
        counts.cumsum(0) - counts,
        mode="sum",
        per_sample_weights=gradient.flatten()[by_label],
    )


def noise_contrast(target_log_odds: Tensor, noise_log_odds: Tensor, is_hit: Optional[Tensor] = None) -> Tensor:
    """-log sigma(o_target) - sum over the noise words of log(1 - sigma(o_n)), in nats  (Mnih & Teh 2012, eq. 8).

    The log-odds that a word is the target and not noise are o = s(w) - log k q(w). The score s stands for the word's
    log-probability, and k q(w) is the expected number of its draws.

    Args:
        target_log_odds: (N).
        noise_log_odds: (N, K).
        is_hit: (N, K), noise words that happen to be the token's target and are left out. None counts all, as in the
            paper: then s becomes log p. Without hits it becomes log(p / (1 - p)).

    Returns:
        (N).
    """
    noise_losses = F.logsigmoid(-noise_log_odds)
    if is_hit is not None:
        noise_losses = noise_losses.masked_fill(is_hit, 0)
    return -F.logsigmoid(target_log_odds) - noise_losses.sum(dim=-1)
