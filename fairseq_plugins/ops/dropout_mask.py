"""Random factors of dropout."""

from typing import Sequence

import torch
from torch import Tensor


def dropout_mask(like: Tensor, size: Sequence[int], *, rate: float) -> Tensor:
    """Factors of ``size``, in the type and on the device of ``like``: 0 with probability ``rate``,
    otherwise 1 / (1 - rate).

    On a CPU uniform numbers are compared with the rate. Torch's own ``bernoulli_`` takes three times as long there.

    Args:
        like: any tensor.
        size: of the result.
        rate: probability of a zero, 0 <= rate < 1.
    """
    keep = 1 - rate
    if like.device.type != "cpu":
        return like.new_empty(size).bernoulli_(keep).div_(keep)
    return torch.rand(size, dtype=torch.float32, device=like.device).lt_(keep).to(like.dtype).div_(keep)
