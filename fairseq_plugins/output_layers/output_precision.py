"""Precision of the output layer, apart from that of the rest of a model."""

import logging
from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from fairseq_plugins.flags.choices import choices
from fairseq_plugins.ops.native_bfloat16 import bfloat16_gain, has_native_bfloat16, is_bfloat16_faster

logger = logging.getLogger(__name__)

OutputPrecisionName = choices(["float32", "bfloat16", "auto"])
"""Values of ``--output-precision``."""

_NAMES = ("", "float32", "bfloat16")
"""By the number that a checkpoint holds; the first where nothing was chosen."""


class OutputPrecision(nn.Module):
    """In which type an output layer holds and multiplies logits and probabilities.

    Training takes the precision of the flag, and "auto" what is faster on the device of the first update. A checkpoint
    keeps that choice, and "auto" keeps a checkpoint's. A search takes the same where the processor has such products,
    and else float32. Scores are in float32 unless :meth:`score_in` says otherwise.

    Args:
        name: a value of ``--output-precision``; "float32" leaves the precision of the model as it is.
    """

    chosen: Tensor

    def __init__(self, name: str):
        super().__init__()
        self.name = str(name)
        self._scores_in = "float32"
        # a number that every precision holds, and the host's moving average of all buffers wants a floating one
        self.register_buffer("chosen", torch.tensor(float(_NAMES.index(name) if name in _NAMES else 0)))

    def score_in(self, name: str) -> None:
        """Compute scores, perplexity above all, in the precision ``name``, a value of ``--output-precision``."""
        self._scores_in = name

    def for_training(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model.

        Raises:
            ValueError: if the processor has no products in bfloat16.
        """
        if self._name() == "":
            self._choose()
        if self._name() == "float32":
            return None
        if not has_native_bfloat16(self.chosen.device):
            raise ValueError(
                f"--output-precision {self.name}: this {self.chosen.device.type} has no matrix products in bfloat16; "
                "give --output-precision float32"
            )
        return torch.bfloat16

    def for_search(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model."""
        return self._where_native(self._name())

    def for_scores(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model."""
        return self._where_native(self._scores_in)

    def _where_native(self, name: str) -> Optional[torch.dtype]:
        device = self.chosen.device
        if name == "auto":
            return torch.bfloat16 if is_bfloat16_faster(device) else None
        return torch.bfloat16 if name == "bfloat16" and has_native_bfloat16(device) else None

    def _name(self) -> str:
        """The precision that was chosen, "" if none."""
        return self.name if self.name != "auto" else _NAMES[int(self.chosen.round())]

    def _choose(self) -> None:
        """What is faster here; one choice for all processes."""
        device = self.chosen.device
        name = "bfloat16" if is_bfloat16_faster(device) else "float32"
        self.chosen.fill_(_NAMES.index(name))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast(self.chosen, 0)
        gain = f"{bfloat16_gain(device):.1f} times as fast" if has_native_bfloat16(device) else "not native"
        logger.info(f"--output-precision auto: {self._name()} (products in bfloat16 are {gain} here)")

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        name = f"{prefix}chosen"
        if self.name != "auto" or name not in state_dict:  # the flag decides; older checkpoints chose nothing
            state_dict[name] = self.chosen.clone()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
