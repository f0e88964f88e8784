"""What depends on the versions of the host, torch and numpy: mostly reading checkpoints with ``weights_only``.

Since torch 2.6 ``torch.load`` reads tensors and plain containers only, unless a class is allowed by name.
The host's checkpoints need one more class, and its broadcast of a checkpoint to other processes a few.
"""

import argparse
import collections
import errno
import functools
import pickle
import re
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

import numpy
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata

CHECKPOINT_CLASSES = [argparse.Namespace]
"""Allowed in checkpoint files: the flags of the host's argument-parser models. Holds data, runs nothing."""

BROADCAST_CLASSES = [
    *(AnyNode, ContainerMetadata, DictConfig, ListConfig, Metadata),
    *(Any, collections.defaultdict, dict, int, list),
    distributed_utils._TensorPlaceholder,
]
"""Allowed besides while one process sends a checkpoint that it has read to the others of its training."""


def adapt_host() -> None:
    """Make the host read its own checkpoints, name file and cause when it cannot, and work with numpy 2."""
    torch.serialization.add_safe_globals(CHECKPOINT_CLASSES)
    _wrap(checkpoint_utils, "load_checkpoint_to_cpu", _explain_unreadable)
    _wrap(distributed_utils, "broadcast_object", _allow_broadcast_classes)
    if not hasattr(numpy, "compat"):  # gone since numpy 2, and the host's data sets still ask for its `long`
        numpy.compat = SimpleNamespace(long=int)


def _wrap(module: ModuleType, name: str, wrapper: Callable) -> None:
    function = getattr(module, name)
    if not hasattr(function, "__wrapped__"):
        setattr(module, name, functools.wraps(function)(functools.partial(wrapper, function)))


def _allow_broadcast_classes(broadcast_object: Callable, *args, **kwargs):
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        return broadcast_object(*args, **kwargs)


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
