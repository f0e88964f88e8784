"""Settings that are kept in checkpoints, because no weight's shape shows them."""

from typing import Dict, Tuple

import torch
from torch import nn


class SavesSettings(nn.Module):
    """A module that refuses checkpoints which were trained with other settings."""

    def __init__(self):
        super().__init__()
        self._settings: Dict[str, Tuple[str, str]] = {}

    def save_setting(self, name: str, *, flag: str, value: str) -> None:
        """Keep the value of a flag as the buffer ``name``; a checkpoint without it is loaded as if it fitted."""
        # every precision holds these numbers, and the host's moving average of all buffers wants floating ones
        self.register_buffer(name, torch.tensor(list(value.encode()), dtype=torch.float32))
        self._settings[name] = (flag, value)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs) -> None:
        for name, (flag, value) in self._settings.items():
            saved = state_dict.setdefault(f"{prefix}{name}", getattr(self, name))
            saved_value = bytes(saved.round().int().tolist()).decode()
            if saved_value != value:
                raise ValueError(
                    f"the checkpoint was trained with {flag} {saved_value}, this model has {flag} {value}: "
                    f"give the same --arch and {flag}"
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
