"""A run that starts from a checkpoint, and every command that builds its model, says what does not fit.

Mends: fairseq says that architectures must match and leaves the reason to the traceback. It names no flag where torch's
optimisers refuse their state, and no file where weights are not those of the model. It takes flags that change the
function but no weight's shape, such as another number of attention heads. It allocates a model of any size before it
compares the weights. A run that is resumed reads the files again that it was started from.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``Trainer.load_checkpoint`` raises "please ensure that the architectures match".
"""

import inspect
import logging
import math
import os
import re
import textwrap
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig, ListConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_plugins.flags.refusal import is_refusal
from fairseq_plugins.flags.values import flag_of
from fairseq_plugins.host.checkpoint_flags import forget_start, literal
from fairseq_plugins.host.unreadable_checkpoints import saved_model_flags
from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)

EMBEDDING_FILES = ("encoder_embed_path", "decoder_embed_path")
"""Flags of files of embeddings that a run is started from."""

OF_TRAINING = re.compile(
    r"dropout|layerdrop|_drop_|noise|masks?$|^init|_init(_|$)|embedding_std|recurrent_scale|transform_bias|timescale"
    r"|column_norm|adversarial|warmup|output_(chunk|loss|precision)|_path$|checkpoint|offload|freeze|_positions$"
    r"|^share_|^tie_|to_keep$|min_params|^base_|pretrained|^export$"
)
"""Names of a model's flags that do not change the function which its weights compute: they say how it is trained, from
which values it starts, how it is computed and how long a text it reads. How weights are shared is checked elsewhere."""

LIMIT_TIMES, LIMIT_NUMBERS, LIMIT_TENSORS = 8, 2**28, 2_000
"""A model may take this many times the numbers and tensors of the weights that it is built for, and this many more."""


def mend() -> None:
    """Wrap the host's ``Trainer.load_checkpoint``, ``load_model_ensemble_and_task`` and ``call_main``."""
    wrap(Trainer, "load_checkpoint", _check_checkpoint)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_one_by_one)
    wrap(distributed_utils, "call_main", _train_without_start)


@contextmanager
def fitting_weights(path: object) -> Iterator[None]:
    """Say in a line which weights torch refuses in the block; ``path`` names their checkpoint.

    Raises:
        ValueError: in place of torch's ``RuntimeError``.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_of_weights(error):
            raise
        raise ValueError(
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
    """Build the models of checkpoints, each by itself, so that the one that does not fit can be named.

    Raises:
        ValueError: if one does not exist, its flags make no model, or its weights are not those of its model.
    """
    models: List[Any] = []
    config = None
    for filename in filenames:
        path = checkpoint_utils.get_maybe_sharded_checkpoint_filename(filename, suffix, 0, num_shards)
        whole = state
        try:
            if whole is None and num_shards == 1 and PathManager.exists(path):
                whole = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
            config = None if whole is None else whole.get("cfg")
            forget_start(config)
            if task is None and config is not None:
                task = tasks.setup_task(config.task, from_checkpoint=True)
            with fitting_weights(filename), building_model(filename, whole) if whole and config else nullcontext():
                (model,), config, task = load_models([filename], arg_overrides, task, strict, suffix, num_shards, whole)
        except OSError as error:
            if "Model file not found" not in str(error):
                raise
            raise ValueError(f"{filename} does not exist: give a checkpoint of fairseq-train") from error
        except OmegaConfBaseException as error:
            raise ValueError(_no_model(filename, error)) from error
        models.append(model)
    return models, config, task


@contextmanager
def building_model(path: object, state: Dict[str, Any]) -> Iterator[None]:
    """Build the model of a checkpoint in the block, by flags that may be of anybody's making.

    Args:
        path: names the checkpoint.
        state: what it holds; the model may be a few times as large as the weights, beside what buffers take.

    Raises:
        ValueError: if the model is too large, or the flags make none; errors that name a remedy stay as they are.
    """
    try:
        _check_types((state.get("cfg") or {}).get("model"), path)
        with _Limited(state["model"]):
            yield
    except Exception as error:
        if is_refusal(error) or isinstance(error, RuntimeError) and _is_of_weights(error):
            raise
        raise ValueError(_no_model(path, error)) from error


class _Limited(TorchDispatchMode):
    """Refuses to make tensors that are larger, or more of them, than a model of some weights can have."""

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
    """At most how many numbers a function of torch makes of its arguments, before it does."""
    shapes = [math.prod(value) for value in args if _is_shape(value)]
    if not given and function.overloadpacket is torch.ops.aten.arange:
        first, last = ([0, *args] if len(args) == 1 else args)[:2]
        shapes.append(math.ceil(abs(last - first)))
    try:
        shapes.append(math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in given))))
    except RuntimeError:
        pass  # such as of a product of matrices that are there
    return max(shapes)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(type(size) is int for size in value)


def _check_types(config: Any, path: object) -> None:
    """See that the flags of a checkpoint's model have values such as a command line gives them.

    Raises:
        ValueError: for the first that has not.
    """
    if not isinstance(config, (Namespace, Mapping, DictConfig)):
        return
    for action in _actions(config):
        value = _value(config, action.dest)
        if value is not None and not _fits(action, value):
            raise ValueError(f"{path} is refused: its flag {flag_of(action.dest)} cannot be {value!s:.60}")


def _actions(config: Any) -> List[Action]:
    """The flags of a configuration's model."""
    name = _value(config, "_name") or _value(config, "arch")
    model_class = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if model_class is None:
        return []
    parser = ArgumentParser(add_help=False, argument_default=SUPPRESS)
    model_class.add_args(parser)
    return parser._actions


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
    """What the flags of a checkpoint's model say otherwise about the function that its weights compute.

    Args:
        config: of the model that is to have the weights.
        saved: of the checkpoint's.
        owner: what has ``config``.

    Returns:
        a phrase for each, such as "with --activation-fn relu, this model has gelu".
    """
    found = []
    for name in (action.dest for action in _actions(config) if not OF_TRAINING.search(action.dest)):
        value, kept = _value(config, name), _value(saved, name)
        if None in (value, kept) or _means(value) == _means(kept):
            continue
        flag = flag_of(name)
        if isinstance(value, bool) or isinstance(kept, bool):
            found.append(f"with {flag}, {owner} is without" if kept else f"without {flag}, {owner} has it")
        else:
            found.append(f"with {flag} {kept}, {owner} has {value}")
    return found


def _means(value: Any) -> Any:
    """What a flag says, in whatever way it is written, such as 1, "1" or "[(512,3)]*20"."""
    try:
        return literal(str(value))
    except ValueError:
        return " ".join(str(value).split())


def _check_same_function(trainer: Trainer, filename: str) -> None:
    """Compare flags with those of the checkpoint that was loaded.

    Raises:
        ValueError: if the model computes something else with its weights.
    """
    if not os.path.isfile(filename):
        return  # such as on another machine than the first
    saved = saved_model_flags(filename)
    if not isinstance(saved, (Namespace, Mapping)):
        return
    found = other_flags(trainer.cfg.model, saved)
    if found:
        raise ValueError(
            f"{filename} was trained {'; '.join(found[:5])}: give the --arch and the flags that it was trained with, "
            "or another --save-dir"
        )


def restored_checkpoint(flags: Any) -> Optional[Path]:
    """The checkpoint that ``fairseq-train`` goes on from, or None where it starts anew.

    Args:
        flags: ``restore_file``, ``save_dir`` and the others of checkpoints, as attributes.
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


def _train_without_start(
    call_main: Callable[..., Any], cfg: DictConfig, main: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Read no embeddings for a training that has its weights from a checkpoint."""
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
    """Name what does not fit.

    Raises:
        ValueError: if model, data, criterion or optimiser are not the checkpoint's.
    """
    if os.path.isdir(filename):
        raise ValueError(f"{filename} is a folder: remove it to start anew, or give another --save-dir")
    try:
        extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    except ValueError as error:
        if "parameter group that doesn't match" not in str(error):
            raise
        raise ValueError(
            f"{filename} has the optimizer's state of other parameters: give the flags that it was trained with, such "
            "as --normaliser, or train on from its weights alone with --reset-optimizer"
        ) from None
    except AssertionError as error:
        part, differs, names = str(error).partition(" does not match; please reset the optimizer (--reset-optimizer). ")
        if not differs:
            raise
        raise ValueError(
            f"{filename} is of a training with another --{part.lower()} ({names}): give that one, or train on from its "
            "weights alone with --reset-optimizer, or give another --save-dir"
        ) from None
    except KeyError as error:  # a state that this training has and the checkpoint lacks
        if type(error) is not KeyError:
            raise
        raise ValueError(
            f"{filename} lacks the state '{error.args[0]}': it is of a training with another --lr-scheduler, or "
            "without --store-ema; give the flags that it was trained with, or another --save-dir and "
            f"--finetune-from-model {filename}"
        ) from None
    except Exception as error:
        cause = error.__context__
        if isinstance(cause, ValueError):
            raise cause from None
        if isinstance(cause, RuntimeError) and _is_of_weights(cause):
            raise ValueError(
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
    told = str(error).partition("\n")[2].partition("\n")[0]
    return textwrap.shorten(told, width=300, placeholder=" ...").rstrip(". ")
