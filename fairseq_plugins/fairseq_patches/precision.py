"""``--amp`` trains with gradient clipping, and goes on as if it had not been stopped.

Patches: fairseq unscales the gradients of one object and steps its wrapper, so that the scaler unscales them again; it
does not save the scale of the loss, and passes the wrapped optimiser by when it loads a state; with
``--amp-scale-window`` it takes ``--amp-init-scale`` for the window. (The scale that the loss begins with is
``--fp16-init-scale``.)
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as fairseq's ``AMPOptimizer.step`` passes itself to ``scaler.step``, the class has no ``state_dict``, or
its ``growth_interval`` is not ``amp_scale_window``.
"""

import logging
from importlib.util import find_spec
from typing import Any, Callable, Dict, List, Optional, Union

from fairseq.distributed import utils as distributed_utils
from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
from omegaconf import DictConfig
from torch import Tensor

from fairseq_plugins.fairseq_patches.patching import wrap

_SCALER = "grad_scaler"
"""Key of the scaler's state beside that of the optimiser."""


def patch_amp() -> None:
    """Wrap methods of fairseq's ``AMPOptimizer``."""
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


# ``--bf16`` trains on the GPU or CPU at hand.
#
# Patches: fairseq takes --bf16 for a TPU's, where it needs torch_xla.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_takes_bf16_for_a_tpu`` passes.


logger = logging.getLogger(__name__)


def patch_bf16() -> None:
    """Wrap fairseq's ``call_main``, through which all of its commands run."""
    wrap(distributed_utils, "call_main", _leave_the_tpu_out)


def _leave_the_tpu_out(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    if cfg.common.bf16 and find_spec("torch_xla") is None:
        cfg.common.tpu = cfg.distributed_training.tpu = False  # the second has been read from the first
        logger.info("torch_xla is not installed: --bf16 trains without a TPU")
    return call_main(cfg, *args, **kwargs)


# ``--fp16`` and ``--bf16`` go on as if they had not been stopped.
#
# Patches: fairseq updates weights in 32 bits and saves them in 16, from which it makes others when a training is
# resumed;
# of the scale of the loss it forgets when it last changed.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_forgets_the_weights_in_32_bits`` passes.


_MASTERS, _COUNTS = "master_weights", "loss_scale_counts"
"""Keys beside those of the optimiser's state."""
_COUNTED = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")

SixteenBitOptimizer = Union[FP16Optimizer, MemoryEfficientFP16Optimizer]


def patch_master_weights() -> None:
    """Wrap what fairseq's optimisers in 16 bits save and load."""
    for optimizer in (FP16Optimizer, MemoryEfficientFP16Optimizer):
        wrap(optimizer, "state_dict", _whole_state)
        wrap(optimizer, "load_state_dict", _load_whole_state)


def _masters(optimizer: SixteenBitOptimizer) -> List[Tensor]:
    """The weights that are updated, none where these are the model's: one a parameter, or one vector a device."""
    weights = getattr(optimizer, "fp32_params", [])
    return [weight.data for weight in (weights.values() if isinstance(weights, dict) else weights)]


def _whole_state(state_dict: Callable[..., Dict[str, Any]], optimizer: SixteenBitOptimizer) -> Dict[str, Any]:
    saved = {**state_dict(optimizer), _MASTERS: _masters(optimizer)}
    scaler: Optional[DynamicLossScaler] = optimizer.scaler
    return saved if scaler is None else {**saved, _COUNTS: {name: getattr(scaler, name) for name in _COUNTED}}


def _load_whole_state(
    load_state_dict: Callable[..., None],
    optimizer: SixteenBitOptimizer,
    state_dict: Dict[str, Any],
    optimizer_overrides: Optional[Dict[str, Any]] = None,
) -> None:
    saved = dict(state_dict)
    masters, counts = saved.pop(_MASTERS, []), saved.pop(_COUNTS, {})
    load_state_dict(optimizer, saved, optimizer_overrides)
    for weight, master in zip(_masters(optimizer), masters):  # one of another precision has none
        weight.copy_(master)
    if optimizer.scaler is not None:
        vars(optimizer.scaler).update(counts)
