"""Patches of reading checkpoints: torch accepts them, and errors name the file, the reason and the remedy."""

import errno
import inspect
import logging
import math
import os
import pickle
import re
import textwrap
import zipfile
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import AnyNode, DictConfig, ListConfig, open_dict
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_plugins.fairseq_patches.checkpoint_flags import forget_start, literal
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.fairseq_patches.translation_direction import check_task_direction
from fairseq_plugins.options import UserError, flag_of

logger = logging.getLogger(__name__)

SafeGlobals = List[Union[Callable[..., Any], Tuple[Callable[..., Any], str]]]
"""Torch's type for a list of classes."""

_ARRAY = numpy.zeros(1, dtype=numpy.int64)
_REDUCED_ARRAY: Any = _ARRAY.__reduce__()

CHECKPOINT_CLASSES: SafeGlobals = [
    *(Namespace, numpy.ndarray, numpy.dtype),
    *(type(_ARRAY.dtype), _REDUCED_ARRAY[0]),
]
"""Allowed in checkpoint files: the flags of fairseq's argument-parser models, and the counts of --eval-bleu in their
metrics. They hold data and run no code."""


def patch_checkpoint_classes() -> None:
    """Let ``torch.load`` read fairseq's checkpoints.

    Problem: since torch 2.6 ``torch.load`` reads only tensors and plain containers. fairseq's checkpoints hold a few
        more classes, and fairseq does not allow them.
    Patch: allow :data:`CHECKPOINT_CLASSES` in the whole process.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with torch 2.6 and later.
    Needed while ``test_fairseq_alone_refuses_a_namespace`` passes.
    """
    torch.serialization.add_safe_globals(CHECKPOINT_CLASSES)


BROADCAST_CLASSES: SafeGlobals = [
    *(AnyNode, ContainerMetadata, DictConfig, ListConfig, Metadata),
    *(Any, defaultdict, dict, int, list),
    distributed_utils._TensorPlaceholder,
]
"""Allowed between the processes of a run, never in files."""


def patch_broadcast() -> None:
    """Let one process send a checkpoint to the other processes of its run.

    Problem: fairseq saves and loads the checkpoint in memory for this, and torch refuses the configuration in it.
    Patch: wrap ``broadcast_object`` to allow :data:`BROADCAST_CLASSES` meanwhile.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with torch 2.6 and later.
    Needed while ``test_fairseq_alone_refuses_a_configuration`` passes.
    """
    wrap(distributed_utils, "broadcast_object", _allow_broadcast_classes)


def _allow_broadcast_classes(broadcast_object: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        return broadcast_object(*args, **kwargs)


ARCHIVE_START = b"PK\x03\x04"
"""First bytes of the archives that torch writes."""
MS_DOS_DIRECTORY = 0x10
"""A bit of the attributes of a record in an archive."""


def patch_unreadable_checkpoints() -> None:
    """Name the file and the remedy if a checkpoint is damaged, truncated, diverged or refused.

    Problem: torch does not compare the checksums of the archive, so flipped bits are read as wrong weights. Errors for
        files that are refused, unreadable or no checkpoint name no file. Weights that are inf or NaN are accepted.
    Patch: wrap ``load_checkpoint_to_cpu``.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with torch 2.6 and later.
    Needed while ``test_fairseq_alone_reads_flipped_bits`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _check_and_load_to_cpu)


def _check_and_load_to_cpu(
    load_checkpoint_to_cpu: Callable[..., Dict[str, Any]], path: Union[str, os.PathLike[str]], *args: Any, **kwargs: Any
) -> Dict[str, Any]:
    """Load a checkpoint.

    Raises:
        UserError: if the file is damaged, holds classes that are not allowed, is no checkpoint of fairseq, or has
            weights that are inf or NaN.
    """
    is_local = os.path.isfile(path) and not PathManager.path_requires_pathmanager(str(path))
    may_be_anything = is_local and not check_archive(path)
    try:
        state = load_checkpoint_to_cpu(path, *args, **kwargs)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise UserError(_truncated(path)) from None  # torch advises to load it in a way that runs code
        raise UserError(
            f"{path} is refused: it holds an object of class {refused.group(1)}, and checkpoints may hold weights and "
            "flags only, because other objects can run code when they are loaded"
        ) from None
    except OSError as error:
        if error.errno == errno.EISDIR:
            raise UserError(f"{path} is a folder: give a checkpoint in it, such as checkpoint_best.pt") from error
        if error.errno != errno.EINVAL:
            raise
        raise UserError(_truncated(path)) from error
    except Exception as error:
        if isinstance(error, UserError):  # by check_flags
            raise UserError(f"{path} {error}") from error.__cause__
        if may_be_anything or isinstance(error, EOFError) or "PytorchStreamReader" in str(error):
            raise UserError(_truncated(path)) from None  # torch advises to load it in a way that runs code
        if isinstance(error, (OmegaConfBaseException, RecursionError)):
            raise UserError(f"{path} has flags that cannot be read: take another checkpoint") from error
        if not is_local or _holds_a_checkpoint(path):
            raise
        raise UserError(_no_checkpoint(path)) from None
    if not _has_weights(state):
        raise UserError(_no_checkpoint(path))
    _check_finite(state["model"], path)
    return state


def check_archive(path: Union[str, os.PathLike[str]]) -> bool:
    """Compare the checksums of an archive that torch wrote.

    Returns:
        whether the file is an archive; files of torch before 1.6 are not, and have no checksums.

    Raises:
        UserError: if it is damaged.
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
            raise UserError(_truncated(path)) from error
    for record in records:
        # torch reads zeros where a record is marked as a directory
        if record.filename == damaged or record.external_attr & MS_DOS_DIRECTORY:
            raise UserError(
                f"{path} is damaged (its record {record.filename} is not as it was written): take an earlier one, or "
                "remove it to start anew"
            )
    names = {record.filename.rpartition("/")[2] for record in records}
    if "data.pkl" not in names or "constants.pkl" in names:  # torch warns that the second is a program, TorchScript
        raise UserError(_no_checkpoint(path))
    return True


def saved_model_flags(path: str) -> Any:
    """Read the flags of a checkpoint's model, without its weights where the file allows it."""
    with open(path, "rb") as file:
        is_archive = file.read(len(ARCHIVE_START)) == ARCHIVE_START
    state = torch.load(path, map_location="cpu", mmap=is_archive)
    args, config = state.get("args"), state.get("cfg")
    return config.get("model") if args is None and isinstance(config, dict) else args


def _holds_a_checkpoint(path: Union[str, os.PathLike[str]]) -> bool:
    """Whether a readable archive has weights, flags and the history of a run where fairseq keeps them."""
    try:
        state = torch.load(path, map_location="cpu")
    except RuntimeError:  # such as of TorchScript
        return False
    has_flags = _has_weights(state) and ("args" in state or "cfg" in state)
    return has_flags and ("optimizer_history" in state or "best_loss" in state)


def _has_weights(state: object) -> bool:
    """Whether weights are where fairseq keeps them, a tensor for each name."""
    weights = state.get("model") if isinstance(state, dict) else None
    return isinstance(weights, dict) and all(isinstance(one, torch.Tensor) for one in weights.values())


def _check_finite(weights: Dict[str, torch.Tensor], path: Union[str, os.PathLike[str]]) -> None:
    """Refuse weights that are inf or NaN.

    Raises:
        UserError: naming the first of them.
    """
    for name, weight in weights.items():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"{path}: its weight {name} holds inf or NaN, as after a training that diverged: take an earlier "
                "checkpoint"
            )


def _no_checkpoint(path: Union[str, os.PathLike[str]]) -> str:
    return f"{path} holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"


def _truncated(path: Union[str, os.PathLike[str]]) -> str:
    return f"{path} is no checkpoint or was cut short: take an earlier one, or remove it to start anew"


EMBEDDING_FILES = ("encoder_embed_path", "decoder_embed_path")
"""Flags of files with the initial embeddings of a run."""

OF_TRAINING = re.compile(
    r"dropout|layerdrop|_drop_|noise|masks?$|^init|_init(_|$)|embedding_std"
    r"|column_norm|adversarial|warmup|output_(chunk|loss|precision)|_path$|checkpoint|offload|freeze|_positions$"
    r"|^share_|^tie_|to_keep$|min_params|^base_|pretrained|^export$"
)
"""Names of a model's flags that do not change the function of its weights. They concern training, initial values, the
way of computing and the length of texts. The sharing of weights is checked elsewhere."""

LIMIT_TIMES, LIMIT_NUMBERS, LIMIT_TENSORS = 8, 2**28, 2_000
"""A model may have this many times the elements and tensors of the weights that it is built for, and this many more."""


def patch_checkpoint_fit() -> None:
    """Explain what does not fit when a run starts from a checkpoint, or a command builds its model.

    Problem: fairseq says that architectures must match and leaves the reason to the traceback. It names no flag if
        torch's optimizers refuse their state, and no file if weights are not those of the model. It accepts flags that
        change the function without changing the shape of a weight, such as another number of attention heads. It
        allocates a model of any size before it compares the weights. A resumed run reads the files of its start again.
    Patch: wrap ``Trainer.load_checkpoint``, ``load_model_ensemble_and_task`` and ``call_main``.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while fairseq's ``Trainer.load_checkpoint`` raises "please ensure that the architectures match"
    (``tests/fairseq_patches/test_patches_checkpoints.py``).
    """
    wrap(Trainer, "load_checkpoint", _check_checkpoint)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_one_by_one)
    wrap(distributed_utils, "call_main", _skip_embedding_files)


@contextmanager
def fitting_weights(path: object) -> Iterator[None]:
    """Name the first weight that torch refuses in the block.

    Args:
        path: the checkpoint of the weights.

    Raises:
        UserError: in place of torch's ``RuntimeError``.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_of_weights(error):
            raise
        raise UserError(
            f"{path} does not fit the model that its flags and the data's dictionary make: point to the data of its "
            f"training, or take another checkpoint ({_difference(error)})"
        ) from None


def _load_one_by_one(
    load_models: Callable[..., Tuple[Any, ...]],
    filenames: Sequence[str],
    arg_overrides: Optional[Dict[str, Any]] = None,
    task: Any = None,
    strict: bool = True,
    suffix: str = "",
    num_shards: int = 1,
    state: Optional[Dict[str, Any]] = None,
) -> Tuple[Any, ...]:
    """Build the models of checkpoints one by one, so that an error can name the one that does not fit.

    Raises:
        UserError: if a file does not exist, its flags make no model, or its weights do not fit the model.
    """
    models: List[Any] = []
    config = None
    for filename in filenames:
        path = checkpoint_utils.get_maybe_sharded_checkpoint_filename(filename, suffix, 0, num_shards)
        whole = state
        try:
            if whole is None and num_shards == 1 and PathManager.exists(path):
                whole = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
            if whole is not None:
                check_task_direction(task, whole, name=filename)
            config = None if whole is None else whole.get("cfg")
            forget_start(config)
            if task is None and config is not None:
                task = tasks.setup_task(config.task, from_checkpoint=True)
            with fitting_weights(filename), building_model(filename, whole) if whole and config else nullcontext():
                (model,), config, task = load_models([filename], arg_overrides, task, strict, suffix, num_shards, whole)
        except OSError as error:
            if "Model file not found" not in str(error):
                raise
            raise UserError(f"{filename} does not exist: give a checkpoint of fairseq-train") from error
        except OmegaConfBaseException as error:
            raise UserError(_no_model(filename, error)) from error
        models.append(model)
    return models, config, task


@contextmanager
def building_model(path: object, state: Dict[str, Any]) -> Iterator[None]:
    """Build the model of a checkpoint in the block, from flags that are not trusted.

    Args:
        path: the checkpoint.
        state: its content; the model may be a few times as large as the weights, and have buffers.

    Raises:
        UserError: if the model is too large, or the flags make none. User errors pass unchanged.
    """
    try:
        _check_types((state.get("cfg") or {}).get("model"), path)
        with _SizeLimit(state["model"]):
            yield
    except Exception as error:
        if isinstance(error, UserError) or isinstance(error, RuntimeError) and _is_of_weights(error):
            raise
        raise UserError(_no_model(path, error)) from error


class _SizeLimit(TorchDispatchMode):
    """Refuses to allocate more or larger tensors than a model of these weights can have."""

    def __init__(self, weights: Dict[str, Tensor]):
        super().__init__()
        self.numbers = LIMIT_TIMES * sum(weight.numel() for weight in weights.values()) + LIMIT_NUMBERS
        self.tensors = LIMIT_TIMES * len(weights) + LIMIT_TENSORS

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        given = [value for value in args if isinstance(value, Tensor)]
        size = _size(function, args, given)
        if not given:
            self.numbers -= size
            self.tensors -= 1
        if self.numbers < size and size > LIMIT_NUMBERS or self.numbers < 0 or self.tensors < 0:
            raise MemoryError("it would be many times as large as the weights")
        return function(*args, **(kwargs or {}))


def _size(function: Any, args: Tuple[Any, ...], given: List[Tensor]) -> int:
    """An upper bound of the number of elements that a function of torch will return."""
    shapes = [math.prod(value) for value in args if _is_shape(value)]
    if not given and function.overloadpacket is torch.ops.aten.arange:
        first, last = ([0, *args] if len(args) == 1 else args)[:2]
        shapes.append(math.ceil(abs(last - first)))
    try:
        shapes.append(math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in given))))
    except RuntimeError:
        pass  # such as a product of existing matrices
    return max(shapes)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(type(size) is int for size in value)


def _check_types(config: Any, path: object) -> None:
    """Check that the flags of a checkpoint's model have values that a command line could give them.

    Raises:
        UserError: naming the first flag that has not.
    """
    if not isinstance(config, (Namespace, Mapping, DictConfig)):
        return
    for action in _actions(config):
        value = _value(config, action.dest)
        if value is not None and not _fits(action, value):
            raise UserError(f"{path} is refused: its flag {flag_of(action.dest)} cannot be {value!s:.60}")


def _actions(config: Any) -> List[Action]:
    """The flags of a configuration's model."""
    model_class = _model_class(config)
    if model_class is None:
        return []
    parser = ArgumentParser(add_help=False, argument_default=SUPPRESS)
    model_class.add_args(parser)
    return parser._actions


def _model_class(config: Any) -> Any:
    name = _value(config, "_name") or _value(config, "arch")
    return ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)


def _value(config: Any, name: str) -> Any:
    return getattr(config, name, None) if isinstance(config, Namespace) else config.get(name)


def _fits(action: Action, value: Any) -> bool:
    if action.nargs == 0:
        return isinstance(value, bool) or str(value) in ("0", "1", "True", "False")
    if isinstance(value, (list, tuple, ListConfig)):
        return action.type not in (int, float) and action.choices is None
    if action.choices is not None:
        return str(value) in map(str, action.choices)
    if action.type in (int, float):
        try:
            return math.isfinite(float(value)) and (action.type is float or float(value) == int(float(value)))
        except (TypeError, ValueError, OverflowError):
            return False
    return isinstance(value, (str, int, float))


def _no_model(path: object, error: Exception) -> str:
    reason = textwrap.shorten(f"{type(error).__name__}: {error}", width=200, placeholder=" ...")
    return f"{path}: its flags make no model that its weights fit ({reason}): take another checkpoint"


def other_flags(config: Any, saved: Any, *, owner: str = "this model") -> List[str]:
    """Compare the flags of two models that change the function of the same weights.

    Args:
        config: flags of the model that will have the weights.
        saved: flags of the checkpoint's model.
        owner: name of the model with ``config``.

    Returns:
        a phrase for each difference, such as "with --activation-fn relu, this model has gelu".
    """
    found = []
    flags = getattr(_model_class(config), "flags", None)
    defaults: Dict[str, Any] = {} if flags is None else flags.defaults()
    for name in (action.dest for action in _actions(config) if not OF_TRAINING.search(action.dest)):
        value, kept = (_value(one, name) for one in (config, saved))
        value, kept = (defaults.get(name) if one is None else one for one in (value, kept))
        if _means(value) == _means(kept) or None in (value, kept) and name not in defaults:
            continue
        flag = flag_of(name)
        if kept is None:
            found.append(f"without {flag}, {owner} has {value}")
        elif value is None:
            found.append(f"with {flag} {kept}, {owner} is without")
        elif isinstance(value, bool) or isinstance(kept, bool):
            found.append(f"with {flag}, {owner} is without" if kept else f"without {flag}, {owner} has it")
        else:
            found.append(f"with {flag} {kept}, {owner} has {value}")
    return found


def _means(value: Any) -> Any:
    """The value of a flag, independent of its spelling: 1 and "1" are equal, "[(512,3)]*20" is a list."""
    try:
        return literal(str(value))
    except ValueError:
        return " ".join(str(value).split())


def _check_same_function(trainer: Trainer, filename: str) -> None:
    """Compare the flags of the model with those of the checkpoint that was loaded.

    Raises:
        UserError: if the model computes another function with the weights.
    """
    if not os.path.isfile(filename):
        return  # such as on another machine of the run
    saved = saved_model_flags(filename)
    if not isinstance(saved, (Namespace, Mapping)):
        return
    found = other_flags(trainer.cfg.model, saved)
    if found:
        raise UserError(
            f"{filename} was trained {'; '.join(found[:5])}: give the --arch and the flags that it was trained with, "
            "or another --save-dir"
        )


def restored_checkpoint(flags: Any) -> Optional[Path]:
    """The checkpoint that ``fairseq-train`` will load, or None if it starts anew.

    Args:
        flags: has ``restore_file``, ``save_dir`` and the other flags of checkpoints as attributes.
    """
    name, folder = getattr(flags, "restore_file", None), getattr(flags, "save_dir", None)
    if name is None or folder is None:
        return None
    last = Path(folder) / "checkpoint_last.pt"
    path = last if name == last.name else Path(name)
    start = getattr(flags, "continue_once", None) or getattr(flags, "finetune_from_model", None)
    if not path.is_file() and name == last.name and start is not None:
        path = Path(start)
    return path if path.is_file() else None


def _skip_embedding_files(
    call_main: Callable[..., Any], cfg: DictConfig, main: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Do not read embeddings from files for a run that loads its weights from a checkpoint."""
    if Path(inspect.unwrap(main).__code__.co_filename).parts[-2:] == ("fairseq_cli", "train.py"):
        path = restored_checkpoint(cfg.checkpoint)
        for name in EMBEDDING_FILES if path is not None else ():
            if _value(cfg.model, name):
                logger.info(f"{flag_of(name)} {_value(cfg.model, name)} is not read: weights are those of {path}")
                if isinstance(cfg.model, Namespace):
                    setattr(cfg.model, name, None)
                else:
                    with open_dict(cfg.model):
                        cfg.model[name] = None
    return call_main(cfg, main, *args, **kwargs)


def _check_checkpoint(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]],
    trainer: Trainer,
    filename: str,
    *args: Any,
    **kwargs: Any,
) -> Optional[Dict[str, Any]]:
    """Load a checkpoint into a run.

    Raises:
        UserError: if model, data, criterion or optimizer do not fit; the message names flags.
    """
    if os.path.isdir(filename):
        raise UserError(f"{filename} is a folder: remove it to start anew, or give another --save-dir")
    try:
        extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    except ValueError as error:
        if "parameter group that doesn't match" not in str(error):
            raise
        raise UserError(
            f"{filename} has the optimizer's state of other parameters: give the flags that it was trained with, such "
            "as --normaliser, or train on from its weights alone with --reset-optimizer"
        ) from None
    except AssertionError as error:
        part, differs, names = str(error).partition(" does not match; please reset the optimizer (--reset-optimizer). ")
        if not differs:
            raise
        raise UserError(
            f"{filename} is of a training with another --{part.lower()} ({names}): give that one, or train on from its "
            "weights alone with --reset-optimizer, or give another --save-dir"
        ) from None
    except KeyError as error:  # a state that this run has and the checkpoint lacks
        if type(error) is not KeyError:
            raise
        raise UserError(
            f"{filename} lacks the state '{error.args[0]}': it is of a training with another --lr-scheduler, or "
            "without --store-ema; give the flags that it was trained with, or another --save-dir and "
            f"--finetune-from-model {filename}"
        ) from None
    except Exception as error:
        cause = error.__context__
        if isinstance(cause, ValueError):
            raise cause from None
        if isinstance(cause, RuntimeError) and _is_of_weights(cause):
            raise UserError(
                f"{filename} does not fit this model: give the --arch and the flags that it was trained with, or "
                f"another --save-dir ({_difference(cause)})"
            ) from None
        raise
    if extra_state is not None:
        _check_same_function(trainer, filename)
    return extra_state


def _is_of_weights(error: RuntimeError) -> bool:
    return "state_dict" in str(error)


def _difference(error: RuntimeError) -> str:
    """The first weight that torch refuses, and why."""
    reason = str(error).partition("\n")[2].partition("\n")[0]
    return textwrap.shorten(reason, width=300, placeholder=" ...").rstrip(". ")
