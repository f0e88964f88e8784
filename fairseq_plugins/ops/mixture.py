"""Mixture of softmaxes in log space.

Shapes: * any leading dimensions, J experts, V vocabulary.
"""

import torch
import torch.nn.functional as F
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
    return torch.logsumexp(log_softmax + log_prior.unsqueeze(-1), dim=-2)


def mixture_nll(logits: Tensor, log_prior: Tensor, target: Tensor) -> Tensor:
    """-log P(target), without mixing the probabilities of the other words.

    Args:
        logits: z, (*, J, V).
        log_prior: log pi, (*, J), normalised over J.
        target: word to score, (*), int64.

    Returns:
        (*) in float32 or wider.
    """
    logits = logits.to(accumulation_dtype(logits))
    num_experts, vocab_size = logits.shape[-2:]
    expert_target = target.unsqueeze(-1).expand(*target.shape, num_experts)
    expert_nll = F.cross_entropy(logits.reshape(-1, vocab_size), expert_target.reshape(-1), reduction="none")
    return -torch.logsumexp(log_prior - expert_nll.view_as(log_prior), dim=-1)
