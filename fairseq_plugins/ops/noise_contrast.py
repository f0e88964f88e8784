"""The loss by which a target is told from noise.

Shapes: N tokens, K noise words of each.
"""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor


def noise_contrast(target_margins: Tensor, noise_margins: Tensor, is_hit: Optional[Tensor] = None) -> Tensor:
    """-log sigma(m_target) - sum over the noise words of log(1 - sigma(m_n)), in nats  (Mnih & Teh 2012, eq. 8).

    A margin is s(w) - log k q(w): the score s, which stands for the logarithm of a probability, above that of the
    expected number of draws of the word.

    Args:
        target_margins: (N).
        noise_margins: (N, K).
        is_hit: (N, K), noise words that count nothing, which are those that are the token's target by accident; None
            counts all, as in the paper. With all of them s becomes log p, without hits log p / (1 - p).

    Returns:
        (N).
    """
    noise_losses = F.logsigmoid(-noise_margins)
    if is_hit is not None:
        noise_losses = noise_losses.masked_fill(is_hit, 0)
    return -F.logsigmoid(target_margins) - noise_losses.sum(dim=-1)
