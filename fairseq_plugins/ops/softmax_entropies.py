"""How sure the softmaxes of a mixture are, each by itself.

Shapes: * any leading dimensions, N of them in all, J experts, d latent width, V vocabulary.
"""

from typing import Optional

import torch
from torch import Tensor

from fairseq_plugins.ops.chunks import default_chunk_size
from fairseq_plugins.ops.logit_gate import LogitGate, check_gate, gated_logits
from fairseq_plugins.ops.precision import accumulation_dtype


@torch.no_grad()
def softmax_entropies(
    latents: Tensor, weight: Tensor, bias: Optional[Tensor] = None, *, gate: Optional[LogitGate] = None
) -> Tensor:
    """-sum_v p_j(v) log p_j(v) with p_j = softmax(W k_j + b), in nats: 0 to log V.

    One chunk of logits and three of its size beside it are held.

    Args:
        latents: k, (*, J, d).
        weight: W, (V, d).
        bias: b, (V).
        gate: g, with features (*, D_g): then p_j = softmax(g * (W k_j + b)).

    Returns:
        (*, J), in float32 or wider.

    Raises:
        ValueError: if a tensor of the gate has a wrong shape, type or device; the message names it.
    """
    num_experts, width = latents.shape[-2:]
    check_gate(gate, latents, vocab_size=weight.size(0), caller="softmax_entropies", name="latents")
    dtype, rows = accumulation_dtype(latents), latents.reshape(-1, num_experts, width)
    entropies = rows.new_empty(rows.shape[:2], dtype=dtype)
    chunk_size = default_chunk_size(num_experts, weight.size(0), dtype=dtype, device=rows.device)
    gate = None if gate is None else gate.flattened()
    for first in range(0, rows.size(0), chunk_size):
        chosen = slice(first, first + chunk_size)
        values = None if gate is None else gate.of_tokens(chosen).values(dtype)
        logits = gated_logits(rows[chosen].flatten(0, 1), weight, bias, gate=values, dtype=dtype)
        log_probs = torch.log_softmax(logits, dim=-1)
        entropies[chosen] = -(log_probs.exp() * log_probs).sum(dim=-1).view(-1, num_experts)
    return entropies.view(*latents.shape[:-1])
