"""An exponential moving average (``--store-ema``) decays a matrix once an update, under however many names it stands.

Mends: the host goes through the names of a model's weights, so that a matrix that two parts share, such as a tied
embedding, decays twice. Columns that a model keeps at one length have it in its average, too.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_decays_a_shared_matrix_twice`` passes.
"""

from typing import Any, Callable, Dict, Mapping, Tuple

from fairseq.models.ema.ema import EMA
from torch import Tensor, nn

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the update of the host's ``EMA``."""
    wrap(EMA, "_step_internal", _step_once_a_weight)


class _FirstNames:
    """What the host takes for a model: each weight under its first name alone."""

    def __init__(self, weights: Mapping[str, Any], first_names: Mapping[str, str]):
        self._weights = {name: weight for name, weight in weights.items() if first_names.get(name, name) == name}

    def state_dict(self) -> Dict[str, Any]:
        return self._weights


def _step_once_a_weight(step: Callable[..., None], ema: EMA, new_model: nn.Module, *args: Any, **kwargs: Any) -> None:
    weights = new_model.state_dict()
    first_names = _first_names(weights)
    for name, first in first_names.items():
        if first in ema.fp32_params:
            ema.fp32_params[name] = ema.fp32_params[first]
    step(ema, _FirstNames(weights, first_names), *args, **kwargs)
    norm = getattr(ema.get_model(), "column_norm", None)
    if norm is not None:
        for weight in norm.weights:
            norm.normalise_(weight.data)


def _first_names(weights: Mapping[str, Any]) -> Dict[str, str]:
    """By the name of each tensor that has elements the first name under which it stands."""
    names: Dict[Tuple[Any, ...], str] = {}
    return {
        name: names.setdefault((weight.data_ptr(), weight.shape, weight.stride(), weight.device, weight.dtype), name)
        for name, weight in weights.items()
        if isinstance(weight, Tensor) and weight.numel() > 0
    }
