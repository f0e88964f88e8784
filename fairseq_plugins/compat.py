"""What depends on the versions of the host, torch and numpy, and what has to be mended in the host.

Since torch 2.6 ``torch.load`` reads tensors and plain containers only, unless a class is allowed by name.
The host's checkpoints need one more class, and its broadcast of a checkpoint to other processes a few.
"""

import argparse
import collections
import errno
import functools
import logging
import os
import pickle
import re
import textwrap
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Union

import numpy
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.optim import AMPOptimizer
from fairseq.trainer import Trainer
from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata

logger = logging.getLogger(__name__)

_ARRAY = numpy.zeros(1, dtype=numpy.int64)

CHECKPOINT_CLASSES = [argparse.Namespace, numpy.ndarray, numpy.dtype, type(_ARRAY.dtype), _ARRAY.__reduce__()[0]]
"""Allowed in checkpoint files: the flags of the host's argument-parser models, and the counts that --eval-bleu
leaves in their metrics. They hold data and run nothing."""

BROADCAST_CLASSES = [
    *(AnyNode, ContainerMetadata, DictConfig, ListConfig, Metadata),
    *(Any, collections.defaultdict, dict, int, list),
    distributed_utils._TensorPlaceholder,
]
"""Allowed besides while one process sends a checkpoint that it has read to the others of its training."""


def adapt_host() -> None:
    """Mend what the host gets wrong; each function below says what."""
    torch.serialization.add_safe_globals(CHECKPOINT_CLASSES)
    _wrap(checkpoint_utils, "load_checkpoint_to_cpu", _explain_unreadable)
    _wrap(distributed_utils, "broadcast_object", _allow_broadcast_classes)
    _wrap(data_utils, "batch_by_size", _keep_the_last_batch)
    _wrap(Trainer, "load_checkpoint", _check_checkpoint)
    _wrap(PathManager, "copy", _copy_and_rename)
    _wrap(distributed_utils, "call_main", _adapt_configuration)
    _wrap(AMPOptimizer, "step", _step_what_was_unscaled)
    if not hasattr(numpy, "compat"):  # gone since numpy 2, and the host's data sets still ask for its `long`
        numpy.compat = SimpleNamespace(long=int)


def backward_keeps_graph() -> bool:
    """Whether the backward pass that is running may be followed by another through the same graph."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else asked()


def _wrap(owner: Union[ModuleType, type], name: str, wrapper: Callable) -> None:
    function = getattr(owner, name)
    if hasattr(function, "__wrapped__"):
        return

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return wrapper(function, *args, **kwargs)

    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def _allow_broadcast_classes(broadcast_object: Callable, *args, **kwargs):
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        return broadcast_object(*args, **kwargs)


def _adapt_configuration(call_main: Callable, cfg: DictConfig, *args, **kwargs):
    """Resume exactly, and train with --bf16 on the GPU or CPU at hand.

    The host cuts a corpus into batches once per process, seeded by the epoch in which it started, so that a training
    that is resumed goes on with other batches; with --update-epoch-batch-itr it cuts them anew every epoch.
    It takes --bf16 for a TPU's, where it needs torch_xla.
    """
    cfg.dataset.update_epoch_batch_itr = True
    if cfg.common.bf16 and find_spec("torch_xla") is None:
        cfg.common.tpu = False
        logger.info("torch_xla is not installed: --bf16 trains without a TPU")
    return call_main(cfg, *args, **kwargs)


def _keep_the_last_batch(batch_by_size: Callable, indices, *args, **kwargs):
    """Keep the sentences at the end whose number is no multiple of --required-batch-size-multiple, 8 by default.

    The host drops them, in validation and generation too, so that a test set of 1,014 sentences has 1,008.
    """
    indices = numpy.asarray(indices if hasattr(indices, "__len__") else list(indices), dtype=numpy.int64)
    batches = batch_by_size(indices, *args, **kwargs)
    num_kept = sum(len(batch) for batch in batches)
    return batches if num_kept == len(indices) else [*batches, indices[num_kept:]]


def _check_checkpoint(load_checkpoint: Callable, trainer: Trainer, filename: str, *args, **kwargs):
    """Refuse other data also when fine-tuning, and name what does not fit, which the host leaves to the traceback."""
    try:
        extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    except Exception as error:
        cause = error.__context__
        if isinstance(cause, ValueError):
            raise cause from None
        if isinstance(cause, RuntimeError) and "state_dict" in str(cause):
            difference = textwrap.shorten(
                str(cause).partition("\n")[2].partition("\n")[0], width=300, placeholder=" ..."
            )
            raise ValueError(
                f"{filename} does not fit this model: give the --arch and the flags that it was trained with, or "
                f"another --save-dir ({difference.rstrip('. ')})"
            ) from None
        raise
    saved = (extra_state or {}).get(type(trainer.task).__name__)
    if saved and hasattr(trainer.task, "check_vocabulary"):
        trainer.task.check_vocabulary(saved)
    return extra_state


def _copy_and_rename(copy: Callable, src_path: str, dst_path: str, overwrite: bool = False):
    """Copy checkpoints aside first, so that one that is killed leaves no half of checkpoint_last.pt."""
    if not PathManager.supports_rename(dst_path):
        return copy(src_path, dst_path, overwrite)
    copied = copy(src_path, f"{dst_path}.tmp", overwrite=True)
    os.replace(f"{dst_path}.tmp", dst_path)
    return copied


def _step_what_was_unscaled(step: Callable, optimizer: AMPOptimizer) -> None:
    """Step the object whose gradients were unscaled; the host steps its wrapper, and the scaler unscales again."""
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


def _explain_unreadable(load_checkpoint_to_cpu: Callable, path, *args, **kwargs):
    try:
        return load_checkpoint_to_cpu(path, *args, **kwargs)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise ValueError(_damaged(path)) from error
        raise ValueError(
            f"{path} is refused: it holds an object of class {refused.group(1)}, and checkpoints may hold weights and "
            "flags only, because other objects can run code when they are loaded"
        ) from error
    except EOFError as error:
        raise ValueError(_damaged(path)) from error
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) != errno.EINVAL and "PytorchStreamReader" not in str(error):
            raise
        raise ValueError(_damaged(path)) from error


def _damaged(path) -> str:
    return f"{path} is no checkpoint or was cut short: take an earlier one, or remove it to start anew"
