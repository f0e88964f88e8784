"""Classes of a configuration are allowed while one process sends a checkpoint to the others of its training.

Mends: the host saves and loads the checkpoint in memory for this, and torch refuses the configuration in it.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with torch 2.6 and later, in trainings of several processes.
Needed as long as ``test_the_host_alone_refuses_a_configuration`` passes.
"""

import collections
from typing import Any, Callable

import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata

from fairseq_plugins.host.checkpoint_classes import SafeGlobals
from fairseq_plugins.host.wrapping import wrap

BROADCAST_CLASSES: SafeGlobals = [
    *(AnyNode, ContainerMetadata, DictConfig, ListConfig, Metadata),
    *(Any, collections.defaultdict, dict, int, list),
    distributed_utils._TensorPlaceholder,
]
"""Allowed between the processes of a training, never in files."""


def mend() -> None:
    """Wrap the host's ``broadcast_object``."""
    wrap(distributed_utils, "broadcast_object", _allow_broadcast_classes)


def _allow_broadcast_classes(broadcast_object: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        return broadcast_object(*args, **kwargs)
