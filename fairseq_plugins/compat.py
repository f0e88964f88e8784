"""What depends on the version of the host or of torch."""

import argparse
import functools
import pickle
import re
from typing import Callable

import torch
from fairseq import checkpoint_utils


def allow_checkpoint_classes() -> None:
    """Let ``torch.load(weights_only=True)`` read the classes that the host's checkpoints hold.

    ``Namespace`` holds the flags of the host's argument-parser models. Nothing that runs code on loading is
    allowed.
    """
    torch.serialization.add_safe_globals([argparse.Namespace])


def explain_unreadable_checkpoints() -> None:
    """Make the host name the file and the cause when a checkpoint cannot be read."""
    if not hasattr(checkpoint_utils.load_checkpoint_to_cpu, "__wrapped__"):
        checkpoint_utils.load_checkpoint_to_cpu = _explaining(checkpoint_utils.load_checkpoint_to_cpu)


def _explaining(load: Callable) -> Callable:
    @functools.wraps(load)
    def load_checkpoint_to_cpu(path, *args, **kwargs):
        try:
            return load(path, *args, **kwargs)
        except pickle.UnpicklingError as error:
            refused = re.search(r"GLOBAL ([\w.]+)", str(error))
            if refused is None:
                raise ValueError(_damaged(path)) from error
            raise ValueError(
                f"{path} is refused: it holds an object of class {refused.group(1)}, and checkpoints may hold weights "
                "and flags only, because other objects can run code when they are loaded"
            ) from error
        except (EOFError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
                raise
            raise ValueError(_damaged(path)) from error

    return load_checkpoint_to_cpu


def _damaged(path: str) -> str:
    return f"{path} is no checkpoint or was cut short: take an earlier one, or remove it to start anew"
