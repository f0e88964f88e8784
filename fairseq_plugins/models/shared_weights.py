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
        for parameter, names in _names_of_shared(model).items():
            saved = [(name, state_dict[f"{prefix}{name}"]) for name in names if f"{prefix}{name}" in state_dict]
            for (one, copy), (another, other_copy) in zip(saved, saved[1:]):
                fit = copy.shape == other_copy.shape == parameter.shape  # torch refuses the others
                is_one = copy.data_ptr() == other_copy.data_ptr()
                if fit and not is_one and not torch.equal(copy, other_copy):
                    self._differ = f"{one} and {another}"

    def refuse(self, model: nn.Module, keys: Any) -> None:
        if self._differ is not None:
            raise ValueError(
                f"{self._differ} are one matrix in this model and two in the checkpoint: share embeddings as in its "
                "training"
            )


def _names_of_shared(model: nn.Module) -> Dict[nn.Parameter, List[str]]:
    """The names of each parameter that has several."""
    names: Dict[nn.Parameter, List[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {parameter: several for parameter, several in names.items() if len(several) > 1}
