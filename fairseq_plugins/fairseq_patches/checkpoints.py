"""Patches of reading checkpoints: torch accepts them, damage is found, and nothing in them runs code."""

import ast
import importlib
import logging
import os
import pickle
import re
import textwrap
import zipfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

import numpy
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.logging import meters
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.base import ContainerMetadata, Metadata

import fairseq_plugins
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.fairseq_patches.generation import check_task_direction
from fairseq_plugins.options import UserError, flag_of, get_flag
from fairseq_plugins.own_parts import naming_parts
from fairseq_plugins.parts import flag_names

logger = logging.getLogger(__name__)

VERSION = "fairseq_plugins"
"""Name in ``extra_state`` of the version of this package that wrote a checkpoint."""

SafeGlobals = List[Union[Callable[..., Any], Tuple[Callable[..., Any], str]]]
"""Torch's type for a list of classes."""

_ARRAY = numpy.zeros(1, dtype=numpy.int64)
_REDUCED_ARRAY: Any = _ARRAY.__reduce__()

CHECKPOINT_CLASSES: SafeGlobals = [Namespace, numpy.ndarray, numpy.dtype, type(_ARRAY.dtype), _REDUCED_ARRAY[0]]
"""Allowed in checkpoint files: the flags of fairseq's argument-parser models, and the counts of --eval-bleu in their
metrics. They hold data and run no code."""

BROADCAST_CLASSES: SafeGlobals = [
    *(AnyNode, ContainerMetadata, DictConfig, ListConfig, Metadata),
    *(Any, defaultdict, dict, int, list),
    distributed_utils._TensorPlaceholder,
]
"""Allowed between the processes of a run, never in files."""


def patch_checkpoint_classes() -> None:
    """Let ``torch.load`` read fairseq's checkpoints, in files and from another process of the run.

    Problem: since torch 2.6 ``torch.load`` reads only tensors and plain containers. fairseq's checkpoints, and the
        configuration that processes exchange, hold a few more classes, which fairseq does not allow.
    Patch: allow :data:`CHECKPOINT_CLASSES` in the whole process, and :data:`BROADCAST_CLASSES` in ``broadcast_object``.
    Needed while ``test_checkpoint_with_a_namespace_is_read_unlike_by_fairseq_alone`` and
    ``test_a_configuration_arrives_unlike_by_fairseq_alone`` pass.
    """
    torch.serialization.add_safe_globals(CHECKPOINT_CLASSES)
    wrap(distributed_utils, "broadcast_object", _allow_broadcast_classes)


def _allow_broadcast_classes(broadcast_object: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        return broadcast_object(*args, **kwargs)


ARCHIVE_START = b"PK\x03\x04"
"""First bytes of the archives that torch writes."""
NO_CHECKPOINT = "holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"
MS_DOS_DIRECTORY = 0x10
"""A bit of the attributes of a record in an archive."""


def patch_damaged_checkpoints() -> None:
    """Refuse checkpoints that are damaged, truncated or diverged. The message names the file.

    Problem: torch does not compare the checksums of the archive, so flipped bits are read as wrong weights. Weights
        that are inf or NaN are accepted. For a file that it refuses, torch advises to load it in a way that runs code.
    Needed while ``test_a_flipped_bit_of_the_weights_is_told_by_file_and_record_and_fairseq_alone_reads_it``
        passes.
    """
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _check_and_load_to_cpu)


def _check_and_load_to_cpu(
    load_checkpoint_to_cpu: Callable[..., Dict[str, Any]], path: Union[str, os.PathLike[str]], *args: Any, **kwargs: Any
) -> Dict[str, Any]:
    is_local = os.path.isfile(path) and not PathManager.path_requires_pathmanager(str(path))
    may_be_anything = is_local and not check_archive(path)
    try:
        state = load_checkpoint_to_cpu(path, *args, **kwargs)
    except UserError as error:  # by check_content
        raise UserError(f"{path} {error}") from error.__cause__
    except Exception as error:
        if refused := re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None:
            raise UserError(
                f"{path} is refused: it holds an object of class {refused.group(1)}, and checkpoints may hold weights "
                "and flags only, because other objects can run code when they are loaded"
            ) from None
        if may_be_anything or "PytorchStreamReader" in str(error):
            raise UserError(_truncated(path)) from None
        raise
    for name, weight in state["model"].items():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"{path}: its weight {name} holds inf or NaN, as after a run that diverged: take an earlier checkpoint"
            )
    return state


def check_archive(path: Union[str, os.PathLike[str]]) -> bool:
    """Compare the checksums of an archive that torch wrote. Raises UserError if it is damaged.

    Returns whether the file is an archive. Files of torch before 1.6 are not, and have no checksums.
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
        raise UserError(f"{path} {NO_CHECKPOINT}")
    return begins_as_archive  # torch does not take one that begins otherwise


def read_flags(path: str) -> Dict[str, Any]:
    """The flags of a checkpoint, ``args`` or ``cfg``, read without its weights if the file allows it."""
    with open(path, "rb") as file:
        is_archive = file.read(len(ARCHIVE_START)) == ARCHIVE_START
    state = torch.load(path, map_location="cpu", mmap=is_archive)
    return {name: state.get(name) for name in ("args", "cfg")}


def _truncated(path: Union[str, os.PathLike[str]]) -> str:
    return f"{path} is no checkpoint or was cut short: take an earlier one; a run without it starts anew"


OF_TRAINING = re.compile(
    r"dropout|layerdrop|_drop_|quant_noise|masks?$|^init|_init(_|$)"
    r"|column_norm|adversarial|warmup|output_(chunk|kernels|loss|precision)|cuda_graphs|_path$|checkpoint|offload|freeze"
    r"|_positions$|^share_|^tie_|to_keep$|min_params|^base_|pretrained|^export$"
)
"""Names of a model's flags that do not change the function of its weights. They concern training, initial values, the
way of computing and the length of texts. The sharing of weights is checked elsewhere."""


def patch_checkpoint_fit() -> None:
    """Refuse to resume with flags that change the function of the weights.

    Problem: fairseq accepts flags that change the function and no weight's shape, such as another number of attention
        heads, so the model is another one and nothing says so. To build a trained model fairseq reads the files from
        which its run started. It hides the reason why a model refuses a checkpoint.
    Needed while ``test_fairseq_alone_takes_other_flags`` passes.
    """
    wrap(Trainer, "load_checkpoint", _load_and_compare_flags)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_one_by_one)


@contextmanager
def fitting_weights(path: object) -> Iterator[None]:
    """If weights do not fit in the block, raise a UserError that names the first, in place of torch's error."""
    try:
        yield
    except RuntimeError as error:
        if "state_dict" not in str(error):
            raise
        reason = str(error).partition("\n")[2].partition("\n")[0]
        reason = textwrap.shorten(reason, width=300, placeholder=" ...").rstrip(". ")
        raise UserError(
            f"{path} does not fit the model that the flags and the data's dictionary make: give the flags and the data "
            f"of its training, or take another checkpoint ({reason})"
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
    models: List[Any] = []
    config = None
    for filename in filenames:
        path = checkpoint_utils.get_maybe_sharded_checkpoint_filename(filename, suffix, 0, num_shards)
        whole = state
        if whole is None and num_shards == 1 and PathManager.exists(path):
            whole = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
        if whole is not None:
            check_task_direction(task, whole, name=filename)
            forget_start(whole.get("cfg"))
        with fitting_weights(filename), naming_parts((whole or {}).get("cfg"), name=f"{filename} "):
            (model,), config, task = load_models([filename], arg_overrides, task, strict, suffix, num_shards, whole)
        models.append(model)
    return models, config, task


START_FILES: Tuple[str, ...] = (
    *("encoder_embed_path", "decoder_embed_path", "embed_path", "pretrained_checkpoint", "base_model"),
    *("restore_file", "continue_once", "finetune_from_model"),
)
"""Flags of files from which a run started. A trained model has all weights in its checkpoint."""


def forget_start(config: Any) -> None:
    """Remove the files of :data:`START_FILES` from the flags of a model before it is built."""
    model = config.get("model") if isinstance(config, DictConfig) else None
    for part in (model, *(get_flag(model, side) for side in ("encoder", "decoder") if isinstance(model, DictConfig))):
        for name in START_FILES:
            if isinstance(part, Namespace) and hasattr(part, name):
                setattr(part, name, None)
            elif isinstance(part, DictConfig) and name in part:
                with open_dict(part):
                    part[name] = None


def _model_class(name: object) -> Any:
    """The class of an architecture or model of this name, or None."""
    return (ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)) if isinstance(name, str) else None


def other_flags(config: Any, saved: Any, *, owner: str = "this model") -> List[str]:
    """A phrase for each flag that differs in two models and changes the function of the same weights.

    For example, "with --activation-fn relu, this model has gelu". ``saved`` are the flags of the checkpoint, ``config``
    the flags of the model that gets its weights. ``owner`` names this model.
    """
    found = []
    model_class = _model_class(get_flag(config, "_name") or get_flag(config, "arch"))
    flags = getattr(model_class, "flags", None)
    defaults: Dict[str, Any] = {} if flags is None else flags.defaults()
    for name in () if model_class is None else flag_names(model_class):
        value, kept = (get_flag(one, name) for one in (config, saved))
        value, kept = (defaults.get(name) if one is None else one for one in (value, kept))
        is_unset = None in (value, kept) and name not in defaults
        if OF_TRAINING.search(name) or is_unset or _means(value) == _means(kept):
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


def _load_and_compare_flags(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]],
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Optional[Dict[str, Any]]:
    """Load a checkpoint into a run. A model that translates the other way may only start a new run."""
    try:
        extra_state = load_checkpoint(trainer, filename, reset_optimizer, *args, **kwargs)
    except Exception as error:
        what, is_other, _ = str(error).partition(" does not match; please reset")
        if is_other:  # fairseq's assertions
            raise UserError(
                f"{filename}: another {what.lower()}: give the flags of the criterion, optimizer and precision that it "
                "was trained with, or begin at update 0 from its weights with --reset-optimizer"
            ) from None
        cause = error.__context__
        if isinstance(error, UserError) or not isinstance(cause, (UserError, RuntimeError)):
            raise
        with fitting_weights(filename):
            raise cause from None
    if extra_state is None or not os.path.isfile(filename):  # such as on another machine of the run
        return extra_state
    saved = read_flags(filename)
    if not reset_optimizer:
        check_task_direction(trainer.task, saved, name=filename)
    model = saved["args"] or (saved["cfg"] or {}).get("model")
    found = other_flags(trainer.cfg.model, model) if isinstance(model, (Namespace, Mapping)) else []
    if found:
        is_start = filename == trainer.cfg.checkpoint.finetune_from_model
        raise UserError(
            f"{filename} was trained {'; '.join(found[:5])}: give the --arch and the flags that it was trained with, "
            f"or {'leave out --finetune-from-model' if is_start else 'another --save-dir'}"
        )
    return extra_state


MODELS: Set[str] = {
    *("transformer", "transformer_align", "transformer_lm", "bart"),
    *("lstm", "lstm_lm", "fconv", "fconv_lm", "fconv_self_att", "lightconv", "lightconv_lm"),
    *("nonautoregressive_transformer", "nacrf_transformer", "iterative_nonautoregressive_transformer"),
    *("cmlm_transformer", "levenshtein_transformer", "insertion_transformer"),
}
"""Models of fairseq that may be built from checkpoints. Others read more files, or contain further configurations."""
TASKS: Set[str] = {"language_modeling", "translation", "translation_lev"}
"""Tasks of fairseq that may be set up from checkpoints. Others start programs, or read configurations from files."""

EVALUATING: Tuple[str, ...] = (
    *("fairseq.utils", "fairseq.criterions.ctc", "fairseq.data.audio.raw_audio_dataset", "fairseq.data.codedataset"),
    *(f"fairseq.models.{name}" for name in ("fconv", "fconv_lm", "fconv_self_att", "lightconv_lm", "transformer_lm")),
    *("fairseq.models.hubert.hubert", "fairseq.models.multires_hubert.multires_hubert"),
    *("fairseq.models.speech_to_text.s2t_wav_transformer",),
    *("fairseq.models.wav2vec.wav2vec", "fairseq.models.wav2vec.wav2vec2"),
    *(f"fairseq.optim.{name}" for name in ("adafactor", "adam", "adamax", "cpu_adam", "fused_lamb")),
)
"""Modules of fairseq that call ``eval``. It is replaced by :func:`literal`, for command lines as well."""

MAX_LENGTH, MAX_DEPTH = 10_000, 20
"""Largest length of the text of a literal and of the list that it makes; largest depth of a configuration."""


def patch_checkpoint_flags() -> None:
    """Check the flags of a checkpoint before they are used.

    Problem: fairseq evaluates texts of the configuration in a checkpoint as Python, and builds any model and task that
        it names.
    Patch: wrap ``_upgrade_state_dict``, which gets the whole content of a checkpoint, and replace ``eval`` in
        :data:`EVALUATING`.
    Needed while ``test_other_values_than_texts_are_what_they_were_and_fairseq_alone_runs_code`` passes.
    """
    wrap(checkpoint_utils, "_upgrade_state_dict", _check_and_upgrade)
    for name in EVALUATING:
        with suppress(ModuleNotFoundError):  # some versions of fairseq lack some of them
            vars(importlib.import_module(name))["eval"] = literal


def literal(text: object) -> Any:
    """Evaluate a Python literal, or sums and multiples of lists of them, such as "[(512, 3)] * 20".

    Raises TypeError if it is no text, as in ``eval``. Raises UserError if it is another expression, or too long.
    """
    if not isinstance(text, str):
        raise TypeError(f"a text is expected, not {type(text).__name__}")
    try:
        if len(text) > MAX_LENGTH:
            raise UserError("it is long")
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(f"{text:.60} is no literal such as 3, (0.9, 0.99) or [(512, 3)] * 20") from error


def _evaluated(node: ast.expr) -> Any:
    """The value of a literal, or of a sum of lists and multiples of lists, which ``literal_eval`` does not take."""
    if not isinstance(node, ast.BinOp):
        return ast.literal_eval(node)
    left, right = _evaluated(node.left), _evaluated(node.right)
    if isinstance(node.op, ast.Mult):
        left, right = (left, right) if isinstance(left, list) else (right, left)
        if isinstance(left, list) and type(right) is int and len(left) * right <= MAX_LENGTH:
            return left * right
    elif isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        if len(left) + len(right) <= MAX_LENGTH:
            return left + right
    raise UserError("not a literal")


def check_saved_flags(flags: object) -> None:
    """Check that a configuration is plain data, and that its models and tasks are allowed."""
    for name, value in _all_values(flags):
        if name == "arch" and value is not None:
            check_model_name(value)
        elif name in REGISTRIES and isinstance(value, str) and not re.fullmatch(r"[\w.-]*", value):
            raise UserError(f"is refused: its flag {flag_of(name)} is {value!r:.80}, which is no name")
        elif name == "dataset_impl" and value == "fasta":
            raise UserError("is refused: with its flag --dataset-impl fasta fairseq runs commands of a shell")
    model, task = get_flag(flags, "model"), get_flag(flags, "task")
    if isinstance(model, (Namespace, Mapping)) and _items(model):
        if get_flag(model, "_name") is not None or get_flag(model, "arch") is None:
            check_model_name(get_flag(model, "_name"))
    names = [get_flag(task, "_name"), get_flag(task, "task")] if isinstance(task, (Namespace, Mapping)) else [task]
    for name in names:
        if name is not None:
            check_task_name(name)


def check_model_name(name: object) -> None:
    """Check that an architecture or model may be built from checkpoints.

    All models outside fairseq may: they come from this package, or from code that the user has imported.
    """
    model_class = _model_class(name)
    allowed = {MODEL_REGISTRY[known] for known in MODELS if known in MODEL_REGISTRY}
    _check_registered(model_class, f"--arch {name!s:.60}", is_allowed=model_class in allowed, allowed=MODELS)


def check_task_name(name: object) -> None:
    """Check a task in the same way as :func:`check_model_name`."""
    task_class = TASK_REGISTRY.get(name) if isinstance(name, str) else None
    _check_registered(task_class, f"--task {name!s:.60}", is_allowed=name in TASKS, allowed=TASKS)


def _check_registered(registered: Optional[type], flag: str, *, is_allowed: bool, allowed: Set[str]) -> None:
    if registered is None:
        raise UserError(f"is of {flag}, which neither fairseq nor this package has")
    if not is_allowed and registered.__module__.split(".")[0] == "fairseq":
        raise UserError(
            f"is of {flag}, which is not built from checkpoints: of fairseq those are {', '.join(sorted(allowed))}; "
            "for a file that you trust, use fairseq without this package"
        )


def _items(flags: object) -> Dict[str, Any]:
    return dict(flags) if isinstance(flags, Mapping) else vars(flags)


def _all_values(flags: object, *, depth: int = 0) -> Iterator[Tuple[str, Any]]:
    """Names and values at all depths: numbers, texts without references, and containers of them, else a UserError."""
    if depth > MAX_DEPTH:
        raise UserError("is refused: its flags are nested too deeply")
    named = [("", value) for value in flags] if isinstance(flags, (list, tuple)) else list(_items(flags).items())
    for name, value in named:
        if type(name) is not str:
            raise UserError(f"is refused: a flag in it has the name {name!r:.60}")
        if isinstance(value, str) and "${" in value:
            raise UserError(f"is refused: its flag {flag_of(name)} is {value!r:.80}, which stands for another value")
        yield name, value
        if isinstance(value, (Namespace, Mapping, list, tuple)):
            yield from _all_values(value, depth=depth + 1)
        elif value is not None and not isinstance(value, Enum) and type(value) not in (bool, int, float, str):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise UserError(f"is refused: its flag {flag_of(name)} is of type {kind}")


def _check_and_upgrade(upgrade: Callable[[Dict[str, Any]], Dict[str, Any]], state: Dict[str, Any]) -> Dict[str, Any]:
    """Check the content of a checkpoint, then let fairseq convert it from older formats."""
    weights = state.get("model") if isinstance(state, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(one, torch.Tensor) for one in weights.values()):
        raise UserError(NO_CHECKPOINT)
    args, config = state.get("args"), state.get("cfg")
    for flags in (args, OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config):
        if flags is not None:
            if not isinstance(flags, (Namespace, dict)):
                raise UserError(f"is refused: its flags are of type {type(flags).__name__}")
            with naming_parts(flags):
                check_saved_flags(flags)
    _check_meters(state.get("extra_state"))
    _check_version(state)
    state = upgrade(state)
    if args is not None:
        state["args"] = None  # the upgrade has copied its flags to "cfg"
    return state


def saved_version(config: object) -> Dict[str, str]:
    """The entry of a checkpoint's ``extra_state`` for a model or a task of this package; others have none."""
    model, task = (get_flag(config, name) for name in ("model", "task"))
    parts = ARCH_MODEL_REGISTRY.get(get_flag(model, "arch")), TASK_REGISTRY.get(get_flag(task, "_name"))
    is_ours = any(part is not None and part.__module__.startswith(VERSION) for part in parts)
    return {VERSION: fairseq_plugins.__version__} if is_ours else {}


def _check_version(state: Dict[str, Any]) -> None:
    """Warn of a checkpoint that a later version of this package wrote, or an unknown one."""
    config, args, extra_state = (state.get(name) for name in ("cfg", "args", "extra_state"))
    own = saved_version(config if config is not None else {"model": args, "task": {"_name": get_flag(args, "task")}})
    if not own or not isinstance(extra_state, dict):
        return
    saved = extra_state.get(VERSION)
    numbers = [[int(n) for n in re.findall(r"\d+", str(version))] for version in (saved, fairseq_plugins.__version__)]
    if not numbers[0] or numbers[0] > numbers[1]:
        written = "an unknown version" if not numbers[0] else f"version {saved:.20}"
        logger.warning(f"the checkpoint is of {written} of fairseq_plugins, and this is {fairseq_plugins.__version__}")


def _check_meters(extra_state: Optional[Dict[str, Any]]) -> None:
    """Refuse names that are no meters, because fairseq calls whatever its module of meters has under a saved name."""
    kept = extra_state.get("metrics") if isinstance(extra_state, dict) else None
    for group in kept.values() if isinstance(kept, dict) else ():
        for meter in group if isinstance(group, (list, tuple)) else ():
            name = meter[2] if isinstance(meter, (list, tuple)) and len(meter) == 4 else meter
            kind = vars(meters).get(name) if isinstance(name, str) else None
            if not (isinstance(kind, type) and issubclass(kind, meters.Meter)):
                raise UserError(f"is refused: it holds a meter {name!r:.60}, which fairseq has not")
