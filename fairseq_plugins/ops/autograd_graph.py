"""What the running backward pass does with its graph."""

import torch


def backward_keeps_graph() -> bool:
    """Whether the backward pass that is running may be followed by another through the same graph.

    Where torch cannot tell, the answer is yes.
    """
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else asked()
