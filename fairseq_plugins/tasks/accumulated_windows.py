"""The windows whose gradients make up an update."""

from contextlib import contextmanager
from typing import Generator, List

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

    @contextmanager
    def scaled_learning_rate(self, optimizer: FairseqOptimizer) -> Generator[None, None, None]:
        """Within the context, the learning rate is multiplied by mean window length / base length.

        It stays as it is where there is no window, as when memory ran out in all of several processes.
        """
        if not self._nominal_lengths:
            yield
            return
        # windows of an update are averaged as shares of the base length, which rounds as earlier releases did
        scale = sum(length / self._base_length for length in self._nominal_lengths) / len(self)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.set_lr(lr * scale)
        try:
            yield
        finally:
            optimizer.set_lr(lr)
