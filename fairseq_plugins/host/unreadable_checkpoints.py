"""A checkpoint that is damaged, cut short, diverged or refused is named, with the remedy.

Mends: torch compares no checksum of the archive, so that a file with flipped bits is read as wrong weights; what it
refuses or cannot read, and what is no checkpoint, ends in errors that name no file; weights that are no numbers are
taken.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with torch 2.6 and later.
Needed as long as ``test_the_host_alone_reads_flipped_bits`` passes.
"""

import errno
import os
import pickle
import re
import zipfile
from typing import Any, Callable, Dict, Union

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from omegaconf.errors import OmegaConfBaseException

from fairseq_plugins.flags.refusal import is_refusal
from fairseq_plugins.host.wrapping import wrap

ARCHIVE_START = b"PK\x03\x04"
"""First bytes of the archives that torch writes."""
MS_DOS_DIRECTORY = 0x10
"""Bit of a record's attributes."""


def mend() -> None:
    """Wrap the host's ``load_checkpoint_to_cpu``."""
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _explain_unreadable)


def _explain_unreadable(
    load_checkpoint_to_cpu: Callable[..., Dict[str, Any]], path: Union[str, os.PathLike[str]], *args: Any, **kwargs: Any
) -> Dict[str, Any]:
    """Load a checkpoint.

    Raises:
        ValueError: if the file is damaged, holds what checkpoints may not hold, is no checkpoint of the host, or has
            weights that are no numbers.
    """
    is_local = os.path.isfile(path) and not PathManager.path_requires_pathmanager(str(path))
    may_be_anything = is_local and not check_archive(path)
    try:
        state = load_checkpoint_to_cpu(path, *args, **kwargs)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise ValueError(_cut_short(path)) from None  # torch advises to read it in the way that runs code
        raise ValueError(
            f"{path} is refused: it holds an object of class {refused.group(1)}, and checkpoints may hold weights and "
            "flags only, because other objects can run code when they are loaded"
        ) from None
    except OSError as error:
        if error.errno == errno.EISDIR:
            raise ValueError(f"{path} is a folder: give a checkpoint in it, such as checkpoint_best.pt") from error
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(_cut_short(path)) from error
    except Exception as error:
        if is_refusal(error):  # of its flags
            raise ValueError(f"{path} {error}") from error.__cause__
        if may_be_anything or isinstance(error, EOFError) or "PytorchStreamReader" in str(error):
            raise ValueError(_cut_short(path)) from None  # torch advises to read it in the way that runs code
        if isinstance(error, (OmegaConfBaseException, RecursionError)):
            raise ValueError(f"{path} has flags that cannot be read: take another checkpoint") from error
        if not is_local or _holds_a_checkpoint(path):
            raise
        raise ValueError(_no_checkpoint(path)) from None
    if not _has_weights(state):
        raise ValueError(_no_checkpoint(path))
    _check_finite(state["model"], path)
    return state


def check_archive(path: Union[str, os.PathLike[str]]) -> bool:
    """Compare the checksums of an archive that torch wrote; files before torch 1.6 are none and have no checksums.

    Returns:
        whether the file is an archive.

    Raises:
        ValueError: if it is damaged.
    """
    with open(path, "rb") as file:
        begins_as_archive = file.read(len(ARCHIVE_START)) == ARCHIVE_START
        try:
            if not begins_as_archive and not zipfile.is_zipfile(file):
                return False
            archive = zipfile.ZipFile(file)
            records = archive.infolist()
            # torch.serialization.set_crc32_options(False) writes zeros
            damaged = archive.testzip() if any(record.CRC for record in records) else None
        except Exception as error:  # flipped bits lead to errors of any kind
            raise ValueError(_cut_short(path)) from error
    for record in records:
        # torch reads zeros where a record is marked as a directory
        if record.filename == damaged or record.external_attr & MS_DOS_DIRECTORY:
            raise ValueError(
                f"{path} is damaged (its record {record.filename} is not as it was written): take an earlier one, or "
                "remove it to start anew"
            )
    names = {record.filename.rpartition("/")[2] for record in records}
    if "data.pkl" not in names or "constants.pkl" in names:  # torch warns that the second is a program, TorchScript
        raise ValueError(_no_checkpoint(path))
    return True


def saved_model_flags(path: str) -> Any:
    """The flags of the model of a checkpoint that can be read; its weights are not."""
    with open(path, "rb") as file:
        is_archive = file.read(len(ARCHIVE_START)) == ARCHIVE_START
    state = torch.load(path, map_location="cpu", mmap=is_archive)
    args, config = state.get("args"), state.get("cfg")
    return config.get("model") if args is None and isinstance(config, dict) else args


def _holds_a_checkpoint(path: Union[str, os.PathLike[str]]) -> bool:
    """Whether a readable archive has the weights, the flags and the history of a training where the host has them."""
    try:
        state = torch.load(path, map_location="cpu")
    except RuntimeError:  # such as of TorchScript
        return False
    has_flags = _has_weights(state) and ("args" in state or "cfg" in state)
    return has_flags and ("optimizer_history" in state or "best_loss" in state)


def _has_weights(state: object) -> bool:
    """Whether weights are where the host has them, a tensor a name."""
    weights = state.get("model") if isinstance(state, dict) else None
    return isinstance(weights, dict) and all(isinstance(one, torch.Tensor) for one in weights.values())


def _check_finite(weights: Dict[str, torch.Tensor], path: Union[str, os.PathLike[str]]) -> None:
    """Refuse weights that are infinite or no numbers.

    Raises:
        ValueError: for the first of them.
    """
    for name, weight in weights.items():
        if not bool(weight.isfinite().all()):
            raise ValueError(
                f"{path}: its weight {name} holds numbers that are infinite or none, as of a training that diverged: "
                "take an earlier checkpoint"
            )


def _no_checkpoint(path: Union[str, os.PathLike[str]]) -> str:
    return f"{path} holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"


def _cut_short(path: Union[str, os.PathLike[str]]) -> str:
    return f"{path} is no checkpoint or was cut short: take an earlier one, or remove it to start anew"
