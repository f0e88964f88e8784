"""Precision of matrix products, sums and logarithms."""

from typing import Optional

import torch
from torch import Tensor

SMALLEST_PROBABILITY = {torch.float32: 1e-30, torch.float64: 1e-300}
"""Sums of probabilities are exact from here on; below, a summand may have been rounded to zero."""


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float32 for 16-bit tensors, otherwise the tensor's own type."""
    return torch.promote_types(x.dtype, torch.float32)


def autocast_dtype(x: Tensor) -> Optional[torch.dtype]:
    """The 16-bit type that autocast would take products of ``x`` in, or None where it would leave them alone."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def is_normal(totals: Tensor) -> Tensor:
    """Where sums of e^z are far from the ends of the numbers of bfloat16 and float32."""
    return (totals > 1e-8) & (totals < 1e30)
