"""Settings that are kept in checkpoints, because no weight's shape shows them."""

from functools import partial
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn


class SavesSettings(nn.Module):
    """A module that refuses checkpoints which were trained with other settings."""

    def __init__(self):
        super().__init__()
        self._settings: Dict[str, Tuple[str, Optional[str], Callable[[str], str]]] = {}

    def save_setting(self, name: str, *, flag: str, value: str, older: Optional[str] = None) -> None:
        """Keep the value of a flag as the buffer ``name``.

        ``older`` is that of checkpoints without it; by default they are loaded as if it fitted.
        """
        self.save_text(name, value, older=older, explain=partial(_explain_flag, flag, value))

    def save_text(self, name: str, value: str, *, older: Optional[str] = None, explain: Callable[[str], str]) -> None:
        """Keep a text as the buffer ``name``; ``older`` as in :meth:`save_setting`.

        ``explain`` gives the message of the error for a checkpoint that holds another text, which it is called with.
        """
        self.register_buffer(name, _as_numbers(value))
        self._settings[name] = (value, older, explain)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name, (value, older, explain) in self._settings.items():
            missing = getattr(self, name) if older is None else _as_numbers(older)
            saved = state_dict.setdefault(f"{prefix}{name}", missing)
            saved_value = bytes(saved.nan_to_num().round().clamp(0, 255).int().tolist()).decode(errors="replace")
            if saved_value != value:
                raise ValueError(explain(saved_value))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _as_numbers(text: str) -> Tensor:
    """Numbers that every precision holds; floating ones, because the host averages all buffers."""
    return torch.tensor(list(text.encode()), dtype=torch.float32)


def _explain_flag(flag: str, value: str, saved_value: str) -> str:
    return (
        f"the checkpoint was trained with {flag} {saved_value}, this model has {flag} {value}: "
        f"give the same --arch and {flag}"
    )
