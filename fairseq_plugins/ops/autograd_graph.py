"""What autograd tells about the backward pass that is running."""

import torch


def backward_keeps_graph() -> bool:
    """Whether the backward pass that is running may be followed by another through the same graph."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else asked()
