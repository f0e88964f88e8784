"""Patch of the flags in checkpoints: they are data, so none of them runs code or names a file that is read."""

import ast
import importlib
import logging
import re
from argparse import Namespace
from contextlib import suppress
from enum import Enum
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Set, Tuple

from fairseq import checkpoint_utils
from fairseq.logging import meters
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

import fairseq_plugins
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.options import UserError, flag_of

logger = logging.getLogger(__name__)

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

VERSION = "fairseq_plugins"
"""Name in ``extra_state`` of the version of this package that wrote a checkpoint."""

_SIDES = ("encoder", "decoder")
_NUMBERS, _LAYERS, _TRUTHS = "numbers", "a number of layers or a list of their sizes", "True, False or a list of them"
_MAPPING, _TEXTS, _FALSE = "a dictionary of names and values", "a list of texts", "False"
EVALUATED: Dict[str, str] = {
    **dict.fromkeys(("adam_betas", "adamax_betas", "lamb_betas", "adafactor_eps", "latent_temp"), _NUMBERS),
    **dict.fromkeys(("adaptive_softmax_cutoff", "adaptive_input_cutoff"), _NUMBERS),
    **dict.fromkeys(("encoder_kernel_size_list", "decoder_kernel_size_list"), _NUMBERS),
    **dict.fromkeys(("pipeline_balance", "pipeline_devices"), _NUMBERS),
    **dict.fromkeys((f"pipeline_{side}_{name}" for side in _SIDES for name in ("balance", "devices")), _NUMBERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "character_filters", "override_encoder_layers"), _LAYERS),
    **dict.fromkeys(("conv_feature_layers", "conv_aggregator_layers", "input_layers", "conv_layers"), _LAYERS),
    **dict.fromkeys(("encoder_attention", "decoder_attention", "self_attention", "project_input"), _TRUTHS),
    **dict.fromkeys(("gated_attention", "downsample", "left_pad_source", "left_pad_target"), _TRUTHS),
    **dict.fromkeys(("encoder_glu", "decoder_glu", "weight_softmax"), _TRUTHS),
    **dict.fromkeys(("encoder_xformers_att_config", "decoder_xformers_att_config", "xformers_att_config"), _MAPPING),
    **dict.fromkeys(("model_overrides", "optimizer_overrides", "epoch2lr", "update2lr"), _MAPPING),
    "wer_args": _TEXTS,
    "pretrained": _FALSE,  # of fconv_self_att, which needs the flags of a further model
}
"""Flags whose texts fairseq evaluates, and the form of their values."""

START_FILES: Tuple[str, ...] = (
    *("encoder_embed_path", "decoder_embed_path", "pretrained_checkpoint", "base_model"),
    *("restore_file", "continue_once", "finetune_from_model"),
)
"""Flags of files from which a run started. A trained model has all weights in its checkpoint."""

MAX_LENGTH, MAX_DEPTH = 10_000, 20
"""Largest length of the text of a literal and of the list that it makes; largest depth of a configuration."""


def patch_checkpoint_flags() -> None:
    """Check the flags of a checkpoint before they are used.

    Problem: fairseq evaluates texts of the configuration in a checkpoint as Python, builds any model and task that it
        names, and reads the files of its start again.
    Patch: wrap ``_upgrade_state_dict``, which gets the whole content of a checkpoint, and replace ``eval`` in
        :data:`EVALUATING`.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_runs_code_of_a_checkpoint`` passes.
    """
    wrap(checkpoint_utils, "_upgrade_state_dict", _check_and_upgrade)
    for name in EVALUATING:
        with suppress(ModuleNotFoundError):  # versions of fairseq differ in them
            vars(importlib.import_module(name))["eval"] = literal


def literal(text: object) -> Any:
    """Evaluate a Python literal, or sums and multiples of lists of them, such as "[(512, 3)] * 20".

    Raises:
        TypeError: if it is no text, as in ``eval``.
        UserError: if it is another expression, or too long.
    """
    if not isinstance(text, str):
        raise TypeError(f"a text is expected, not {type(text).__name__}")
    try:
        if len(text) > MAX_LENGTH:
            raise UserError("it is long")
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(f"{text:.60} is no literal such as 3, (0.9, 0.99) or [(512, 3)] * 20") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or type(node.value) in (bool, int, float, str)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(_value(node.operand))
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(element) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values) if key is not None}
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Mult):
            left, right = (left, right) if isinstance(left, list) else (right, left)
            if isinstance(left, list) and type(right) is int and len(left) * right <= MAX_LENGTH:
                return left * right
        elif isinstance(left, list) and isinstance(right, list) and len(left) + len(right) <= MAX_LENGTH:
            return left + right
    raise UserError("not a literal")


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise UserError("not a number")
    return value


def check_flags(flags: object) -> None:
    """Check that a configuration is plain data that is safe to use.

    All texts that fairseq evaluates must be literals, and its models and tasks must be allowed.

    Raises:
        UserError: if it is not.
    """
    for name, value in _all_values(flags):
        if name in EVALUATED and isinstance(value, str) and value and not _has_form(value, EVALUATED[name]):
            raise UserError(
                f"is refused: its flag {flag_of(name)} is {value!r:.80}, which fairseq would evaluate as Python; "
                f"it takes {EVALUATED[name]}"
            )
        if name == "arch" and value is not None:
            check_model_name(value)
        elif name in REGISTRIES and isinstance(value, str) and not re.fullmatch(r"[\w.-]*", value):
            raise UserError(f"is refused: its flag {flag_of(name)} is {value!r:.80}, which is no name")
        elif name == "dataset_impl" and value == "fasta":
            raise UserError("is refused: with its flag --dataset-impl fasta fairseq runs commands of a shell")
    model, task = _get(flags, "model"), _get(flags, "task")
    if isinstance(model, (Namespace, Mapping)) and _items(model):
        if _get(model, "_name") is not None or _get(model, "arch") is None:
            check_model_name(_get(model, "_name"))
    names = [_get(task, "_name"), _get(task, "task")] if isinstance(task, (Namespace, Mapping)) else [task]
    for name in names:
        if name is not None:
            check_task_name(name)


def check_model_name(name: object) -> None:
    """Check that an architecture or model may be built from checkpoints.

    All models outside fairseq may: they come from this package, or from code that the user has imported.

    Raises:
        UserError: if it may not, or there is no such model.
    """
    model_class = (ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)) if isinstance(name, str) else None
    if model_class is None:
        raise UserError(f"holds a model of --arch {name!s:.60}, which neither fairseq nor this package has")
    allowed = {MODEL_REGISTRY[known] for known in MODELS if known in MODEL_REGISTRY}
    if model_class not in allowed and _is_of_fairseq(model_class):
        raise UserError(
            f"holds a model of --arch {name}, which is not built from checkpoints: of fairseq's models those are "
            f"{', '.join(sorted(MODELS))}"
        )


def check_task_name(name: object) -> None:
    """Check a task in the same way as :func:`check_model_name`."""
    task_class = TASK_REGISTRY.get(name) if isinstance(name, str) else None
    if task_class is None:
        raise UserError(f"was trained for --task {name!s:.60}, which neither fairseq nor this package has")
    if name not in TASKS and _is_of_fairseq(task_class):
        raise UserError(
            f"was trained for --task {name}, which is not set up from checkpoints: of fairseq's tasks those are "
            f"{', '.join(sorted(TASKS))}"
        )


def _is_of_fairseq(registered: type) -> bool:
    return registered.__module__.split(".")[0] == "fairseq"


def _has_form(text: str, form: str) -> bool:
    try:
        value = literal(text)
    except ValueError:
        return False
    if value is None:
        return True
    if form == _MAPPING:
        return isinstance(value, dict)
    if form == _FALSE:
        return value is False
    leaves = list(_leaves(value))
    if form == _TEXTS:
        return all(isinstance(leaf, str) for leaf in leaves)
    return not isinstance(value, dict) and all(type(leaf) in (bool, int, float) for leaf in leaves)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _leaves(element)
    else:
        yield value


def _all_values(flags: object, *, depth: int = 0) -> Iterator[Tuple[str, Any]]:
    """Iterate over names and values at all depths.

    Raises:
        UserError: for anything except numbers, texts and containers of them, and for texts with references.
    """
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


def _items(flags: object) -> Dict[str, Any]:
    return dict(flags) if isinstance(flags, Mapping) else vars(flags)


def _get(flags: object, name: str) -> Any:
    return flags.get(name) if isinstance(flags, Mapping) else getattr(flags, name, None)


def _check_and_upgrade(upgrade: Callable[[Dict[str, Any]], Dict[str, Any]], state: Dict[str, Any]) -> Dict[str, Any]:
    """Check the flags of a checkpoint, then let fairseq convert it from older formats.

    Raises:
        UserError: if the flags are refused or unreadable.
    """
    args, config = state.get("args"), state.get("cfg")
    for flags in (args, OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config):
        if flags is not None:
            if not isinstance(flags, (Namespace, dict)):
                raise UserError(f"is refused: its flags are of type {type(flags).__name__}")
            check_flags(flags)
    _check_meters(state.get("extra_state"))
    _check_version(state)
    try:
        state = upgrade(state)
    except Exception as error:
        if args is None or "optimizer_history" not in state:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"has flags that cannot be read ({reason:.200}): take another checkpoint") from error
    if args is not None:
        state["args"] = None  # the upgrade has copied its flags to "cfg"
    return state


def saved_version(config: object) -> Dict[str, str]:
    """The entry of a checkpoint's ``extra_state`` for a model or a task of this package; others have none."""
    model, task = (_get(config, name) for name in ("model", "task"))
    parts = ARCH_MODEL_REGISTRY.get(_get(model, "arch")), TASK_REGISTRY.get(_get(task, "_name"))
    is_ours = any(part is not None and part.__module__.startswith(VERSION) for part in parts)
    return {VERSION: fairseq_plugins.__version__} if is_ours else {}


def _check_version(state: Dict[str, Any]) -> None:
    """Warn of a checkpoint that a later version of this package wrote, or an unknown one."""
    config, args, extra_state = (state.get(name) for name in ("cfg", "args", "extra_state"))
    own = saved_version(config if config is not None else {"model": args, "task": {"_name": _get(args, "task")}})
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


def forget_start(config: Any) -> None:
    """Remove the files of :data:`START_FILES` from the flags of a model before it is built."""
    model = config.get("model") if isinstance(config, DictConfig) else None
    for part in (model, *(_get(model, side) for side in _SIDES if isinstance(model, DictConfig))):
        for name in (*START_FILES, "embed_path"):
            if isinstance(part, Namespace) and hasattr(part, name):
                setattr(part, name, None)
            elif isinstance(part, DictConfig) and name in part:
                with open_dict(part):
                    part[name] = None
