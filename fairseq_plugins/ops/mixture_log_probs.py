"""Distribution of a mixture of softmaxes: differentiable, and faster without gradients.

Shapes: * any leading dimensions, N of them in all, J experts, d latent width, V vocabulary.
"""

from typing import Optional

import torch
from torch import Tensor

from fairseq_plugins.ops.chunks import default_chunk_size
from fairseq_plugins.ops.logit_gate import LogitGate, check_gate, gate_values, multiply_by_gate
from fairseq_plugins.ops.matmul import project
from fairseq_plugins.ops.precision import accumulation_dtype, autocast_dtype

SMALLEST_PROBABILITY = {torch.float32: 1e-30, torch.float64: 1e-300}
"""Sums of probabilities are exact from here on; below, an expert's may have been rounded to zero."""


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
) -> Tensor:
    """:func:`mixture_log_probs` of z = W k + b, without gradients and in a fraction of its time.

    The probabilities are mixed as such, in the memory of the logits and a chunk at a time, so that each is
    exponentiated once and stays in the cache; rows with a word so improbable that this would not be exact are
    computed again in log space.

    Args:
        latents: k, (*, J, d).
        log_prior: log pi, (*, J), normalised over J, float32 or wider.
        weight: W, (V, d).
        bias: b, (V).
        gate: g, with features (*, D_g): then z = g * (W k + b).

    Returns:
        (*, V) in the type of ``log_prior``.

    Raises:
        ValueError: if a tensor of the gate has a wrong shape, type or device; the message names it.
    """
    num_experts, width = latents.shape[-2:]
    leading, vocab_size = latents.shape[:-2], weight.size(0)
    check_gate(gate, latents, vocab_size=vocab_size, caller="mixture_log_probs_from_latents", name="latents")
    operand_dtype = autocast_dtype(latents) or latents.dtype
    rows = latents.reshape(-1, num_experts, width).to(operand_dtype)
    priors = log_prior.reshape(-1, num_experts)
    log_probs = priors.new_empty(rows.size(0), vocab_size)
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=priors.dtype, device=rows.device)
    with torch.autocast(rows.device.type, enabled=False):
        weight = weight.to(operand_dtype)
        gate = None if gate is None else gate.flattened().with_operands_in(operand_dtype)
        for first in range(0, rows.size(0), chunk_size):
            chosen = slice(first, first + chunk_size)
            values = None
            if gate is not None:
                values = gate_values(gate.features[chosen], gate.weight, gate.bias, dtype=priors.dtype)
            _write_log_probs(rows[chosen], priors[chosen], weight, bias, gate=values, out=log_probs[chosen])
    return log_probs.view(*leading, vocab_size)


def _write_log_probs(
    latents: Tensor, log_prior: Tensor, weight: Tensor, bias: Optional[Tensor], *, gate: Optional[Tensor], out: Tensor
) -> None:
    logits = _logits(latents, weight, bias, gate=gate, dtype=out.dtype)
    if log_prior.size(1) == 1:
        torch.log_softmax(logits.squeeze(1), dim=-1, out=out)
        return
    probs = torch.softmax(logits, dim=-1, out=logits)
    torch.bmm(log_prior.exp().unsqueeze(1), probs, out=out.unsqueeze(1))
    inexact = out.amin(dim=-1) < SMALLEST_PROBABILITY[out.dtype]
    out.log_()
    if inexact.any():
        again = _logits(latents[inexact], weight, bias, gate=None if gate is None else gate[inexact], dtype=out.dtype)
        out[inexact] = mixture_log_probs(again, log_prior[inexact])


def _logits(
    latents: Tensor, weight: Tensor, bias: Optional[Tensor], *, gate: Optional[Tensor], dtype: torch.dtype
) -> Tensor:
    """g * (W k + b), (n, J, V), of latents (n, J, d) and the gate's values (n, V)."""
    logits = project(latents.flatten(0, 1), weight, bias, dtype=dtype)
    if gate is not None:
        multiply_by_gate(logits, gate)
    return logits.unflatten(0, latents.shape[:2])
