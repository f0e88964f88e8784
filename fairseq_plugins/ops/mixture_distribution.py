"""Distribution of a mixture of softmaxes: differentiable, and faster without gradients.

Shapes: * any leading dimensions, n tokens of a chunk, J experts, d width of their hidden states, V words.
"""

import math
from typing import Optional, Sequence

import torch
from torch import Tensor

from fairseq_plugins.ops.kernel_choice import choose_kernels
from fairseq_plugins.ops.kernels import Kernels
from fairseq_plugins.ops.logit_gate import LogitGate, gated_logits
from fairseq_plugins.ops.matmul import accumulation_dtype, product_dtype
from fairseq_plugins.ops.mixture_chunk import SMALLEST_PROBABILITY, default_chunk_size, is_normal


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


@torch.no_grad()
def mixture_log_probs_from_latents(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    gate: Optional[LogitGate] = None,
    chunk_dtype: Optional[torch.dtype] = None,
    kernels: Optional[Kernels] = None,
) -> Tensor:
    """:func:`mixture_log_probs` of z = W k + b, without gradients and in a fraction of its time.

    The probabilities are mixed outside log space, in the memory of the logits and a chunk at a time. So each
    logit is exponentiated once and stays in the cache. Tokens with a word that is too improbable for this are computed
    again in log space. Triton mixes in log space directly.

    Args:
        latents: k, hidden states of the experts, (*, J, d).
        log_prior: log pi, (*, J), normalised over J, float32 or wider.
        weight: W, (V, d).
        bias: b, (V).
        gate: g, with features (*, D_g): then z = g * (W k + b).
        chunk_dtype: torch.bfloat16 to hold, multiply and mix a chunk in 16 bits. Then log-probabilities err by some
            hundredths where logits are up to about 16, and by more where they are larger. Probabilities add up to one
            within 1 %.
        kernels: the set of functions to use; by default the device's.

    Returns:
        (*, V) in the type of ``log_prior``.
    """
    num_experts, width = latents.shape[-2:]
    leading, vocab_size = latents.shape[:-2], weight.size(0)
    operand_dtype = chunk_dtype or product_dtype(latents)
    rows = latents.reshape(-1, num_experts, width).to(operand_dtype)
    priors = log_prior.reshape(-1, num_experts)
    log_probs = priors.new_empty(rows.size(0), vocab_size)
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=priors.dtype, device=rows.device)
    with torch.autocast(rows.device.type, enabled=False):
        weight = weight.to(operand_dtype)
        gate = None if gate is None else gate.flattened().with_operands_in(operand_dtype)
        for first in range(0, rows.size(0), chunk_size):
            chosen = slice(first, first + chunk_size)
            _write_log_probs(
                rows[chosen],
                priors[chosen],
                weight,
                bias,
                gate=None if gate is None else gate.select(chosen).values(priors.dtype),
                logits_dtype=priors.dtype if chunk_dtype is None or gate is not None else chunk_dtype,
                out=log_probs[chosen],
                kernels=kernels or choose_kernels(rows.device),
            )
    return log_probs.view(*leading, vocab_size)


def _write_log_probs(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    *,
    gate: Optional[Tensor],
    logits_dtype: torch.dtype,
    out: Tensor,
    kernels: Kernels,
) -> None:
    """Write the log-probabilities of a chunk to ``out`` (n, V): latents (n, J, d), values of the gate (n, V)."""
    logits = gated_logits(latents.flatten(0, 1), weight, bias, gate=gate, dtype=logits_dtype)
    if log_prior.size(1) == 1:
        torch.log_softmax(logits.to(out.dtype), dim=-1, out=out)
        return
    if kernels.log_mixture(logits, log_prior, out=out):
        return
    if logits_dtype == out.dtype:
        probs = torch.softmax(logits, dim=-1, out=logits).unflatten(0, log_prior.shape)
        torch.bmm(log_prior.exp().unsqueeze(1), probs, out=out.unsqueeze(1))
        inexact = out.amin(dim=-1) < SMALLEST_PROBABILITY[out.dtype]
    else:
        totals = _mix_exponentials(logits.unflatten(0, log_prior.shape), log_prior, out=out)
        inexact = (out.amin(dim=-1) < SMALLEST_PROBABILITY[torch.float32]) | ~is_normal(totals).all(dim=-1)
    out.log_()
    # a small sum of probabilities may lack summands that were rounded to zero
    if inexact.any():
        gate = None if gate is None else gate[inexact]
        again = gated_logits(latents[inexact].flatten(0, 1), weight, bias, gate=gate, dtype=out.dtype)
        out[inexact] = mixture_log_probs(again.unflatten(0, (-1, log_prior.size(1))), log_prior[inexact])


def _mix_exponentials(logits: Tensor, log_prior: Tensor, *, out: Tensor) -> Tensor:
    """Write sum_j pi_j softmax(z_j) of logits in 16 bits, (n, J, V), to ``out``. Returns sum_v e^z, (n, J).

    The logits are overwritten. The sum is taken in 16 bits: each step is a pass over the vocabulary, which takes twice
    as long in float32.
    """
    exponentials = logits.exp_()
    totals = exponentials.sum(dim=-1)
    weights = (log_prior.exp() / totals).to(logits.dtype).unsqueeze(-1)
    total = exponentials[:, 0].mul_(weights[:, 0])
    for j in range(1, logits.size(1)):
        total.addcmul_(exponentials[:, j], weights[:, j])
    out.copy_(total)
    return totals


def mean_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Log of the mean of several distributions' probabilities, (*), given the log-probabilities of each, (*)."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0) - math.log(len(log_probs))


def responsibilities(log_probs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Posterior probability of each distribution under their mean, (*) each. They add up to one.

    The gradient of the mean's logarithm by each distribution's logarithm is its responsibility.
    """
    return torch.softmax(torch.stack(list(log_probs)), dim=0).unbind(0)


@torch.no_grad()
def softmax_entropies(
    latents: Tensor, weight: Tensor, bias: Optional[Tensor] = None, *, gate: Optional[LogitGate] = None
) -> Tensor:
    """Entropy of each expert, -sum_v p_j(v) log p_j(v) with p_j = softmax(W k_j + b), in nats: 0 to log V.

    Peak memory is four chunks of logits.

    Args:
        latents: k, hidden states of the experts, (*, J, d).
        weight: W, (V, d).
        bias: b, (V).
        gate: g, with features (*, D_g): then p_j = softmax(g * (W k_j + b)).

    Returns:
        (*, J), in float32 or wider.
    """
    num_experts, width = latents.shape[-2:]
    dtype, rows = accumulation_dtype(latents), latents.reshape(-1, num_experts, width)
    entropies = rows.new_empty(rows.shape[:2], dtype=dtype)
    chunk_size = default_chunk_size(num_experts, weight.size(0), dtype=dtype, device=rows.device)
    gate = None if gate is None else gate.flattened()
    for first in range(0, rows.size(0), chunk_size):
        chosen = slice(first, first + chunk_size)
        values = None if gate is None else gate.select(chosen).values(dtype)
        logits = gated_logits(rows[chosen].flatten(0, 1), weight, bias, gate=values, dtype=dtype)
        log_probs = torch.log_softmax(logits, dim=-1)
        entropies[chosen] = -(log_probs.exp() * log_probs).sum(dim=-1).view(-1, num_experts)
    return entropies.view(*latents.shape[:-1])
