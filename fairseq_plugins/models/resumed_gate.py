"""The checkpoint that the training of a gate goes on from, and its base models."""

from argparse import Namespace
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_plugins.data.text_task import TextTask
from fairseq_plugins.host.checkpoint_fit import restored_checkpoint
from fairseq_plugins.models.base_model_checkpoints import BaseFlags, read_base_model, saved_flags
from fairseq_plugins.models.checkpoint_files import read_state

FLAGS_IN_CHECKPOINT = "base_model_flags"
"""Where the flags of a checkpoint's model keep those of its base models, a list of :data:`BaseFlags`."""


class ResumedGate(NamedTuple):
    """The checkpoint that a training goes on from: its path, the flags of its base models, the weights of all."""

    path: Path
    flags: List[BaseFlags]
    weights: Dict[str, Tensor]


def resumed_gate(args: Namespace) -> Optional[ResumedGate]:
    """What a training with these flags goes on from, or None where it starts anew or from another kind of model."""
    path = restored_checkpoint(args)
    if path is None:
        return None
    state = read_state(path)
    flags: Optional[List[BaseFlags]] = getattr(saved_flags(state), FLAGS_IN_CHECKPOINT, None)
    return None if flags is None else ResumedGate(path, flags, state["model"])


def check_resumed(resumed: ResumedGate, paths: List[str], task: TextTask) -> None:
    """Compare the files that are still there with the checkpoint.

    Raises:
        ValueError: if they are other models.
    """
    fit = len(paths) in (0, len(resumed.flags))
    for n, path in enumerate(paths):
        if fit and Path(path).is_file():
            flags, model = read_base_model(path, task, {})
            fit = flags == resumed.flags[n] and all(
                _equal_as_saved(weight, resumed.weights.get(f"decoder.members.{n}.{name}"))
                for name, weight in model.decoder.named_parameters()
            )
    if not fit:
        raise ValueError(
            f"{resumed.path} holds a gate on other base models than --base-model {':'.join(paths)}: take another "
            "--save-dir, start from other weights, or leave --base-model out to go on with those of the checkpoint"
        )


def _equal_as_saved(weight: Tensor, saved: Optional[Tensor]) -> bool:
    """Whether a weight is the saved one, which a training in 16 bits has rounded; the host saves it in 32 bits then."""
    rounded = (weight.to(dtype).to(weight.dtype) for dtype in (weight.dtype, torch.bfloat16, torch.float16))
    return saved is not None and any(torch.equal(one, saved.to(weight.dtype)) for one in rounded)
