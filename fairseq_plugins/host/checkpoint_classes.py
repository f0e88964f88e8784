"""Classes that checkpoints hold are allowed by name.

Mends: since torch 2.6 ``torch.load`` reads tensors and plain containers only, and the host's checkpoints hold a few
classes more, which it does not allow.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with torch 2.6 and later.
Needed as long as ``test_the_host_alone_refuses_a_namespace`` passes.
"""

import argparse
from typing import Any, Callable, List, Tuple, Union

import numpy
import torch

SafeGlobals = List[Union[Callable[..., Any], Tuple[Callable[..., Any], str]]]
"""What torch takes as a list of classes."""

_ARRAY = numpy.zeros(1, dtype=numpy.int64)
_REDUCED_ARRAY: Any = _ARRAY.__reduce__()

CHECKPOINT_CLASSES: SafeGlobals = [
    *(argparse.Namespace, numpy.ndarray, numpy.dtype),
    *(type(_ARRAY.dtype), _REDUCED_ARRAY[0]),
]
"""Allowed in checkpoint files: the flags of the host's argument-parser models, and the counts that --eval-bleu
leaves in their metrics. They hold data and run nothing."""


def mend() -> None:
    """Allow :data:`CHECKPOINT_CLASSES` wherever torch loads."""
    torch.serialization.add_safe_globals(CHECKPOINT_CLASSES)
