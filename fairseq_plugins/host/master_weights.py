"""``--fp16`` and ``--bf16`` go on as if they had not been stopped.

Mends: the host updates weights in 32 bits and saves them in 16, from which it makes others when a training is resumed;
of the scale of the loss it forgets when it last changed.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_forgets_the_weights_in_32_bits`` passes.
"""

from typing import Any, Callable, Dict, List, Optional, Union

from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
from torch import Tensor

from fairseq_plugins.host.wrapping import wrap

_MASTERS, _COUNTS = "master_weights", "loss_scale_counts"
"""Keys beside those of the optimiser's state."""
_COUNTED = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")

SixteenBitOptimizer = Union[FP16Optimizer, MemoryEfficientFP16Optimizer]


def mend() -> None:
    """Wrap what the host's optimisers in 16 bits save and load."""
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
