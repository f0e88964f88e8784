"""The loss by which a target is told from noise.

Shapes: N tokens, K noise words of each.
"""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor


def noise_contrast(target_log_odds: Tensor, noise_log_odds: Tensor, is_hit: Optional[Tensor] = None) -> Tensor:
    """-log sigma(o_target) - sum over the noise words of log(1 - sigma(o_n)), in nats  (Mnih & Teh 2012, eq. 8).

    The log-odds o that a word is the target and no noise are s(w) - log k q(w): the score s, which stands for the
    logarithm of a probability, less that of the expected number of draws of the word.

    Args:
        target_log_odds: (N).
        noise_log_odds: (N, K).
        is_hit: (N, K), noise words that count nothing, which are those that are the token's target by accident; None
            counts all, as in the paper. With all of them s becomes log p, without hits log p / (1 - p).

    Returns:
        (N).
    """
    noise_losses = F.logsigmoid(-noise_log_odds)
    if is_hit is not None:
        noise_losses = noise_losses.masked_fill(is_hit, 0)
    return -F.logsigmoid(target_log_odds) - noise_losses.sum(dim=-1)
