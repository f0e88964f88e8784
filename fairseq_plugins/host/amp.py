"""``--amp`` trains with gradient clipping, and goes on as if it had not been stopped.

Mends: the host unscales the gradients of one object and steps its wrapper, so that the scaler unscales them again; it
does not save the scale of the loss, and passes the wrapped optimiser by when it loads a state; with
``--amp-scale-window`` it takes ``--amp-init-scale`` for the window. (The scale that the loss begins with is
``--fp16-init-scale``.)
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``AMPOptimizer.step`` passes itself to ``scaler.step``, the class has no ``state_dict``, or
its ``growth_interval`` is not ``amp_scale_window``.
"""

from typing import Any, Callable, Dict, Optional

from fairseq.optim import AMPOptimizer
from omegaconf import DictConfig

from fairseq_plugins.host.wrapping import wrap

_SCALER = "grad_scaler"
"""Key of the scaler's state beside that of the optimiser."""


def mend() -> None:
    """Wrap methods of the host's ``AMPOptimizer``."""
    wrap(AMPOptimizer, "__init__", _grow_as_told)
    wrap(AMPOptimizer, "step", _step_what_was_unscaled)
    wrap(AMPOptimizer, "state_dict", _state_with_scale)
    wrap(AMPOptimizer, "load_state_dict", _load_state_with_scale)


def _grow_as_told(
    initialise: Callable[..., None], optimizer: AMPOptimizer, cfg: DictConfig, *args: Any, **kwargs: Any
) -> None:
    initialise(optimizer, cfg, *args, **kwargs)
    if cfg.common.amp_scale_window is not None:
        optimizer.scaler.set_growth_interval(cfg.common.amp_scale_window)


def _step_what_was_unscaled(step: Callable[..., None], optimizer: AMPOptimizer) -> None:
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


def _state_with_scale(state_dict: Callable[..., Dict[str, Any]], optimizer: AMPOptimizer) -> Dict[str, Any]:
    scaler = optimizer.scaler.state_dict()
    saved = state_dict(optimizer)
    return {**saved, _SCALER: scaler} if scaler else saved  # it is empty on a CPU


def _load_state_with_scale(
    load_state_dict: Callable[..., None],
    optimizer: AMPOptimizer,
    state_dict: Dict[str, Any],
    optimizer_overrides: Optional[Dict[str, Any]] = None,
) -> None:
    saved = dict(state_dict)
    scaler = saved.pop(_SCALER, None)
    if scaler:
        optimizer.scaler.load_state_dict(scaler)
    optimizer.fp32_optimizer.load_state_dict(saved, optimizer_overrides)
