"""What autograd records, and what the running backward pass does with its graph."""

from typing import Iterable

import torch
from torch import Tensor


def is_recorded(inputs: Iterable[Tensor]) -> bool:
    """Whether a backward pass may follow what is computed from these: gradients are enabled, and one needs its own."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def backward_keeps_graph() -> bool:
    """Whether the backward pass that is running may be followed by another through the same graph.

    Where torch cannot tell, the answer is yes.
    """
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else asked()
