"""Scale of gradients in float16, whose numbers end at 65,504 and lose precision below 6e-5."""

from typing import Optional

import torch
from torch import Tensor


def float16_scale(rows: Tensor, weight: Tensor, factors: Tensor, *, chunk_size: int) -> Tensor:
    """The power of two that brings a chunk's gradients near the largest float16 without passing it.

    The gradients by the scores ``rows`` W' of one token add up to at most twice its factor in absolute value, and to
    no more than the factor for any word.

    Args:
        rows: one or several for each token, (N, ..., d).
        weight: W, (V, d).
        factors: of the tokens, (N).
        chunk_size: tokens of a chunk.
    """
    largest_row, largest_weight, largest_factor = (
        torch.linalg.vector_norm(x, float("inf")).float() for x in (rows, weight, factors)
    )
    bound = largest_factor * torch.maximum(chunk_size * largest_row, 2 * largest_weight).clamp(min=1)
    return torch.exp2(torch.floor(torch.log2(2**15 / bound.clamp(min=2**-10))))


def logit_bound(latents: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """What no logit W k + b exceeds in absolute value: latents (..., d), weight (V, d), bias (V)."""
    longest_latent, longest_weight = (
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).max() for x in (latents, weight)
    )
    bound = longest_latent * longest_weight
    return bound if bias is None else bound + torch.linalg.vector_norm(bias, float("inf"), dtype=torch.float32)
