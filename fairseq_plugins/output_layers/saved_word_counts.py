"""Word counts of the training text that a checkpoint keeps.

Shapes: V vocabulary, M = 5 digits of a number to the base 256.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn

NUM_DIGITS = 5
"""Enough for 10^12 words."""


class SavedWordCounts(nn.Module):
    """How often each word occurs in the training text; a checkpoint's counts take the place of the model's own.

    They are kept as digits to the base 256, because every precision that a model is cast to holds these, and the
    host's moving average of all buffers wants floating-point numbers.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.register_buffer("digits", torch.zeros(vocab_size, NUM_DIGITS))
        self._error: Optional[ValueError] = None

    def set(self, counts: Tensor) -> None:
        """Keep ``counts``, (V,) int64."""
        self.digits.copy_((counts.unsqueeze(-1) // self._places(counts.device)) % 256)

    def refuse(self, error: ValueError) -> None:
        """Raise ``error`` where the counts are read, unless a checkpoint brings them."""
        self._error = error

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._error = None
        super()._load_from_state_dict(*args, **kwargs)

    def forward(self) -> Tensor:
        """The counts, (V,) int64; zeros where neither data nor a checkpoint gave them.

        A model that starts from a checkpoint's weights has the counts of the text that those were trained on.

        Raises:
            ValueError: if the training text could not be counted.
        """
        if self._error is not None:
            raise self._error
        return (self.digits.round().long() * self._places(self.digits.device)).sum(dim=-1)

    @staticmethod
    def _places(device: torch.device) -> Tensor:
        return 256 ** torch.arange(NUM_DIGITS, device=device)
