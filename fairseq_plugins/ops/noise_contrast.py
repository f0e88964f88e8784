"""The loss by which a target is told from noise.

Shapes: N tokens, K noise words of each.
"""

import torch.nn.functional as F
from torch import Tensor


def noise_contrast(target_margins: Tensor, noise_margins: Tensor, is_hit: Tensor) -> Tensor:
    """-log sigma(m_target) - sum over the noise words of log(1 - sigma(m_n)), in nats  (Mnih & Teh 2012, eq. 8).

    A margin is s(w) - log k q(w): the score s, which stands for the logarithm of a probability, above that of the
    expected number of draws of the word.

    Args:
        target_margins: (N).
        noise_margins: (N, K).
        is_hit: (N, K), where a noise word is the token's target by accident; it then counts nothing.

    Returns:
        (N).
    """
    noise_losses = F.logsigmoid(-noise_margins).masked_fill(is_hit, 0)
    return -F.logsigmoid(target_margins) - noise_losses.sum(dim=-1)
