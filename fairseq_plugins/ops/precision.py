"""Precision in which sums and logarithms are formed."""

import torch
from torch import Tensor


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float32 for 16-bit tensors, otherwise the tensor's own type."""
    return torch.promote_types(x.dtype, torch.float32)
