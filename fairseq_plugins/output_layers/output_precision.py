"""Precision of the output layer, apart from that of the rest of a model."""

import logging
from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from fairseq_plugins.flags.choices import choices
from fairseq_plugins.flags.values import check_choice
from fairseq_plugins.ops.native_bfloat16 import bfloat16_gain, has_native_bfloat16, is_bfloat16_faster

logger = logging.getLogger(__name__)

OUTPUT_PRECISIONS = ["float32", "bfloat16", "auto"]
"""Values of ``--output-precision``."""
OutputPrecisionName = choices(OUTPUT_PRECISIONS)


class OutputPrecision(nn.Module):
    """In which type an output layer holds and multiplies logits and probabilities.

    Training takes the precision of the flag, and "auto" what is faster on the device of the first update. A checkpoint
    keeps that choice, and "auto" keeps a checkpoint's. A search takes the same where the processor has such products,
    and else float32. Scores are in float32. Where :attr:`scores_in` is set, both follow it.

    Args:
        name: a value of ``--output-precision``; "float32" leaves the precision of the model as it is.

    Attributes:
        scores_in: a value of ``--output-precision`` that scores and searches were asked to take, or None.
        chosen: what "auto" took: above zero bfloat16, below zero float32, zero nothing yet. An average over checkpoints
            or updates has the sign of those that chose.

    Raises:
        ValueError: if there is no such value.
    """

    chosen: Tensor

    def __init__(self, name: str):
        super().__init__()
        self.name = check_choice(name, OUTPUT_PRECISIONS, flag="--output-precision")
        self.scores_in: Optional[str] = None
        self._choice: Optional[str] = None
        self.register_buffer("chosen", torch.zeros(()))

    def score_in(self, name: Optional[str]) -> None:
        """Compute scores and search in the precision ``name``, a value of ``--output-precision``.

        None leaves it to the training again.

        Raises:
            ValueError: if there is no such value, or the processor has no such products.
        """
        if name is not None:
            self._required(check_choice(name, OUTPUT_PRECISIONS, flag="--output-precision"))
        self.scores_in = name

    def for_training(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model.

        Raises:
            ValueError: if the processor has no products in bfloat16.
        """
        if self.name == "auto" and self._kept_choice() is None:
            self._choose()
        return self._required(self._trained_in())

    def for_loss(self) -> Optional[torch.dtype]:
        """That of :meth:`for_training` in training mode, and of :meth:`for_scores` in evaluation mode."""
        return self.for_training() if self.training else self.for_scores()

    def for_search(self) -> Optional[torch.dtype]:
        """torch.bfloat16 where the processor has such products, or None for the precision of the model.

        It is :meth:`for_scores` where :meth:`score_in` was asked for a precision.
        """
        if self.scores_in is not None:
            return self.for_scores()
        native = self._trained_in() == "bfloat16" and has_native_bfloat16(self.chosen.device)
        return torch.bfloat16 if native else None

    def for_scores(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model."""
        if self.scores_in == "auto":
            return torch.bfloat16 if is_bfloat16_faster(self.chosen.device) else None
        return self._required(self.scores_in)

    def _required(self, name: Optional[str]) -> Optional[torch.dtype]:
        if name != "bfloat16":
            return None
        device = self.chosen.device
        if not has_native_bfloat16(device):
            raise ValueError(
                f"--output-precision bfloat16: this {device.type} has no matrix products in bfloat16; give "
                "--output-precision float32"
            )
        return torch.bfloat16

    def _trained_in(self) -> Optional[str]:
        """float32 or bfloat16, or None where "auto" has not chosen."""
        return self.name if self.name != "auto" else self._kept_choice()

    def _kept_choice(self) -> Optional[str]:
        if self._choice is None and self.chosen != 0:
            self._choice = "bfloat16" if self.chosen > 0 else "float32"
        return self._choice

    def _choose(self) -> None:
        """What is faster here; one choice for all processes."""
        device = self.chosen.device
        self.chosen.fill_(1 if is_bfloat16_faster(device) else -1)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast(self.chosen, 0)
        gain = f"{bfloat16_gain(device):.1f} times as fast" if has_native_bfloat16(device) else "not native"
        logger.info(f"--output-precision auto: {self._kept_choice()} (products in bfloat16 are {gain} here)")

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._choice = None
        state_dict.setdefault(f"{prefix}chosen", torch.zeros_like(self.chosen))  # from before the flag
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
