"""Trained language models that another model is built on: read from their checkpoints, or built anew from its own."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Type, Union

import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel, build_model
from fairseq.utils import split_paths
from torch import Tensor

from fairseq_plugins.models.checkpoint_files import check_checkpoints, naming_checkpoint
from fairseq_plugins.models.gated_decoder import Weights
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.models.text_task import TextTask
from fairseq_plugins.output_layers.gate import OUTPUT_GATES, NoGate

BaseFlags = Dict[str, Any]
"""``arch`` and the other flags that a model is built by: numbers and texts, which checkpoints may hold."""

FLAGS_IN_CHECKPOINT = "base_model_flags"
"""Where the flags of a checkpoint's model keep those of its base models, a list of :data:`BaseFlags`."""

_NO_PATH = "--base-model: give the checkpoint of a trained language model, or several joined by colons"


@dataclass(frozen=True)
class BaseModels:
    """What a model is built on.

    Attributes:
        models: in the order of ``--base-model``.
        weights: "read" from the models' own checkpoints, or "awaited", where those of the model that is built on them
            bring theirs.
    """

    models: List[RecurrentLanguageModel]
    weights: Weights


def base_models(args: Namespace, task: TextTask, *, overrides: BaseFlags) -> BaseModels:
    """The models that ``args`` name, for the task's dictionary.

    A training reads ``args.base_model``, checkpoints joined by colons, and keeps their flags in ``args``. Where
    ``args`` are a checkpoint's they hold these flags: the models are built by them and await the weights of the
    checkpoint. So does a training that is resumed; its files are compared with its checkpoint, and may be gone.

    Args:
        args: flags of the model that is built on them.
        task: whose dictionary they read.
        overrides: flags that are other than in the models' trainings.

    Raises:
        ValueError: if no model is named, one is named twice, a checkpoint is missing, damaged, of another vocabulary,
            or holds another kind of model, or a training that is resumed has other base models.
    """
    kept: Optional[List[BaseFlags]] = getattr(args, FLAGS_IN_CHECKPOINT, None)
    if kept is None:
        paths = _paths(args)
        resumed = _resumed_gate(args)
        if resumed is None:
            return _read_models(paths, args, task, overrides)
        _check_resumed(resumed, paths, task)
        kept = resumed.flags
        setattr(args, FLAGS_IN_CHECKPOINT, kept)
    return BaseModels([_build(flags, task, overrides) for flags in kept], weights="awaited")


def _paths(args: Namespace) -> List[str]:
    """The checkpoints that ``--base-model`` names; none where it is not given."""
    given: str = getattr(args, "base_model", None) or ""
    paths = split_paths(given) if given else []
    if not all(paths):
        raise ValueError(_NO_PATH)
    files = [Path(path).resolve() for path in paths]
    for n, path in enumerate(paths):
        if files[n] in files[:n]:
            raise ValueError(f"--base-model: {path} is given twice; give each model of an ensemble once")
    return paths


def _read_models(paths: List[str], args: Namespace, task: TextTask, overrides: BaseFlags) -> BaseModels:
    """The models of checkpoints with their weights; keeps their flags in ``args``."""
    if not paths:
        raise ValueError(_NO_PATH)
    check_checkpoints(paths)
    read = [_read_model(path, task, overrides) for path in paths]
    setattr(args, FLAGS_IN_CHECKPOINT, [flags for flags, _ in read])
    return BaseModels([model for _, model in read], weights="read")


def _read_model(path: str, task: TextTask, overrides: BaseFlags) -> Tuple[BaseFlags, RecurrentLanguageModel]:
    state = _read(path)
    flags = _checked_flags(state, path)
    with naming_checkpoint(path):
        model = _build(flags, task, overrides)
        model.load_state_dict(state["model"])
    return flags, model


def _build(flags: BaseFlags, task: TextTask, overrides: BaseFlags) -> RecurrentLanguageModel:
    # the host's models of argparse flags take these
    # pyrefly: ignore[bad-argument-type]
    model = build_model(Namespace(**{**flags, **overrides}), task)
    assert isinstance(model, RecurrentLanguageModel)
    return model


def _read(path: Union[str, Path]) -> Dict[str, Any]:
    with naming_checkpoint(path):
        return checkpoint_utils.load_checkpoint_to_cpu(str(path))


def _checked_flags(state: Dict[str, Any], path: str) -> BaseFlags:
    """The flags that the checkpoint's model is built by.

    Raises:
        ValueError: if it is no recurrent language model, or has a gate.
    """
    saved = vars(_saved_flags(state))
    model_class: Optional[Type[BaseFairseqModel]] = ARCH_MODEL_REGISTRY.get(saved.get("arch"))
    if model_class is None or not issubclass(model_class, RecurrentLanguageModel):
        raise ValueError(
            f"{path} holds a model of --arch {saved.get('arch')}: --base-model takes recurrent language models of this "
            "package, such as lstm_lm_awd"
        )
    gate = saved.get(OUTPUT_GATES.destination, NoGate.name)
    if gate != NoGate.name:
        raise ValueError(f"{path} has a gate already, {OUTPUT_GATES.flag} {gate}: give a model without one")
    parser = ArgumentParser(add_help=False)
    model_class.add_args(parser)
    names = {"arch", *(action.dest for action in parser._actions)}
    return {name: value for name, value in saved.items() if name in names}


def _saved_flags(state: Dict[str, Any]) -> Namespace:
    """The flags of a checkpoint's model; of models that the host configures in another way, their name as ``arch``."""
    config = state.get("cfg")
    saved = state["args"] if config is None else config["model"]
    if isinstance(saved, Namespace):
        return saved
    return Namespace(arch=saved.get("_name"))


class _ResumedGate(NamedTuple):
    """The checkpoint that a training goes on from: its path, the flags of its base models, the weights of all."""

    path: Path
    flags: List[BaseFlags]
    weights: Dict[str, Tensor]


def _resumed_gate(args: Namespace) -> Optional[_ResumedGate]:
    """What a training with these flags goes on from, or None where it starts anew or from another kind of model."""
    path = _resumed_checkpoint(args)
    if path is None:
        return None
    state = _read(path)
    flags: Optional[List[BaseFlags]] = getattr(_saved_flags(state), FLAGS_IN_CHECKPOINT, None)
    return None if flags is None else _ResumedGate(path, flags, state["model"])


def _check_resumed(resumed: _ResumedGate, paths: List[str], task: TextTask) -> None:
    """Compare the files that are still there with the checkpoint.

    Raises:
        ValueError: if they are other models.
    """
    fit = len(paths) in (0, len(resumed.flags))
    for n, path in enumerate(paths):
        if fit and Path(path).is_file():
            flags, model = _read_model(path, task, {})
            fit = flags == resumed.flags[n] and all(
                _equal_as_saved(weight, resumed.weights.get(f"decoder.members.{n}.{name}"))
                for name, weight in model.decoder.named_parameters()
            )
    if not fit:
        raise ValueError(
            f"{resumed.path} holds a gate on other base models than --base-model {':'.join(paths)}: take another "
            "--save-dir, or leave --base-model out to go on with those of the checkpoint"
        )


def _equal_as_saved(weight: Tensor, saved: Optional[Tensor]) -> bool:
    """Whether a weight is the saved one, which a training in 16 bits has rounded; the host saves it in 32 bits then."""
    rounded = (weight.to(dtype).to(weight.dtype) for dtype in (weight.dtype, torch.bfloat16, torch.float16))
    return saved is not None and any(torch.equal(one, saved.to(weight.dtype)) for one in rounded)


def _resumed_checkpoint(args: Namespace) -> Optional[Path]:
    """The checkpoint that ``fairseq-train`` with these flags goes on from, or None where it starts anew."""
    name, folder = getattr(args, "restore_file", None), getattr(args, "save_dir", None)
    if name is None or folder is None:
        return None
    last = Path(folder) / "checkpoint_last.pt"
    path = last if name == last.name else Path(name)
    start = getattr(args, "finetune_from_model", None)
    if not path.is_file() and name == last.name and start is not None:
        path = Path(start)
    return path if path.is_file() else None
