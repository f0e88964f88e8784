"""``--amp`` trains with gradient clipping.

Mends: the host unscales the gradients of one object and steps its wrapper, so that the scaler unscales them again.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``AMPOptimizer.step`` passes itself to ``scaler.step``.
"""

from typing import Callable

from fairseq.optim import AMPOptimizer

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``AMPOptimizer.step``."""
    wrap(AMPOptimizer, "step", _step_what_was_unscaled)


def _step_what_was_unscaled(step: Callable[..., None], optimizer: AMPOptimizer) -> None:
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()
