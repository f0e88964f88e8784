"""Whether a checkpoint has one matrix where a model has one under several names."""

from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, nn


def refuse_unequal_copies(model: nn.Module) -> None:
    """Let ``model`` refuse checkpoints with several matrices where it shares one, of which it would keep the last.

    They are refused with a ValueError, once all modules, which may know better what differs, are loaded. A checkpoint
    that shares more than the model is loaded: each of the model's matrices starts as the shared one.
    """
    copies = _Copies()
    model.register_load_state_dict_pre_hook(copies.compare)
    model.register_load_state_dict_post_hook(copies.refuse)


class _Copies:
    """What differs in the state that is being loaded."""

    def __init__(self):
        self._differ: Optional[str] = None

    def compare(self, model: nn.Module, state_dict: Dict[str, Tensor], prefix: str, *loading: Any) -> None:
        self._differ = None
        for first, *others in _names_of_shared(model):
            for other in others:
                one, another = (state_dict.get(f"{prefix}{name}") for name in (first, other))
                if one is not None and another is not None and not torch.equal(one, another):
                    self._differ = f"{first} and {other}"

    def refuse(self, model: nn.Module, keys: Any) -> None:
        if self._differ is not None:
            raise ValueError(
                f"{self._differ} are one matrix in this model and two in the checkpoint: share embeddings as in its "
                "training"
            )


def _names_of_shared(model: nn.Module) -> List[List[str]]:
    """The names of each parameter that has several."""
    names: Dict[nn.Parameter, List[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [several for several in names.values() if len(several) > 1]
