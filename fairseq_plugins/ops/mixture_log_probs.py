"""Distribution of a mixture of softmaxes, in log space.

Shapes: * any leading dimensions, J experts, V vocabulary.
"""

import torch
from torch import Tensor

from fairseq_plugins.ops.precision import accumulation_dtype


def mixture_log_probs(logits: Tensor, log_prior: Tensor) -> Tensor:
    """log P(v) = logsumexp_j (log pi_j + log softmax(z_j)_v)  (Yang et al. 2018, eq. 2).

    Args:
        logits: z, (*, J, V).
        log_prior: log pi, (*, J), normalised over J.

    Returns:
        (*, V) in float32 or wider, normalised over V.
    """
    log_softmax = torch.log_softmax(logits, dim=-1, dtype=accumulation_dtype(logits))
    joint = log_softmax + log_prior.unsqueeze(-1)
    return joint.squeeze(-2) if joint.size(-2) == 1 else torch.logsumexp(joint, dim=-2)
