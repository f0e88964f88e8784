"""The windows whose gradients make up an update."""

from contextlib import contextmanager
from typing import Generator, List, Optional

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.optim import FairseqOptimizer
from torch import nn


class AccumulatedWindows:
    """Windows since the gradients were cleared; ``--update-freq`` accumulates several.

    The learning rate of an update follows the length of its windows (Merity et al. 2018, section 4.1).

    Args:
        base_length: window length, in tokens, at which the learning rate is the one of the schedule.
    """

    def __init__(self, *, base_length: int):
        self._base_length = base_length
        self._nominal_lengths: List[int] = []

    def __len__(self) -> int:
        return len(self._nominal_lengths)

    def begin(self, model: nn.Module) -> None:
        """Forget the windows of the last update, made or skipped, if no parameter has a gradient."""
        if all(parameter.grad is None for parameter in model.parameters()):
            self._nominal_lengths.clear()

    def add(self, nominal_length: int) -> None:
        """Count a window whose gradients are there; its length is the one asked for, in tokens."""
        self._nominal_lengths.append(nominal_length)

    @property
    def learning_rate_scale(self) -> Optional[float]:
        """Mean window length / base length; None where there is no window, as when memory ran out for it."""
        if not self._nominal_lengths:
            return None
        # windows of an update are averaged as shares of the base length, which rounds as earlier releases did
        return sum(length / self._base_length for length in self._nominal_lengths) / len(self)


def agreed_scale(scale: Optional[float], *, device: torch.device) -> float:
    """The largest scale of all processes, which make an update together; 1 where none has one.

    They differ where memory ran out in one of them.
    """
    if distributed_utils.get_data_parallel_world_size() > 1:
        own = torch.tensor([0.0 if scale is None else scale], dtype=torch.double, device=device)
        group = distributed_utils.get_data_parallel_group()
        scale = float(distributed_utils.all_reduce(own, group, op="max")) or None
    return 1.0 if scale is None else scale


@contextmanager
def scaled_learning_rate(optimizer: FairseqOptimizer, scale: float) -> Generator[None, None, None]:
    """Within the context, the learning rate is multiplied."""
    lr = optimizer.param_groups[0]["lr"]
    optimizer.set_lr(lr * scale)
    try:
        yield
    finally:
        optimizer.set_lr(lr)
