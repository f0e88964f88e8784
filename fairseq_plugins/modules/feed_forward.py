"""A layer of rectifiers between recurrent layers and the output.

Shapes: B batch rows, T time steps, C input width, D width.
"""

import torch
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_positive
from fairseq_plugins.modules.linear import Linear


class FeedForward(nn.Module):
    """max(0, U x + b).

    Pachitariu & Sahani 2013 give a linear recurrent network such a layer, of a size and kind that they do not publish.

    Args:
        input_size: C.
        size: D.

    Shape:
        x: (B, T, C); output: (B, T, D).

    Raises:
        ValueError: on a size below one.
    """

    def __init__(self, input_size: int, size: int):
        super().__init__()
        self.size = int(check_positive(size, flag="--output-hidden-size"))
        self.linear = Linear(input_size, self.size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))
