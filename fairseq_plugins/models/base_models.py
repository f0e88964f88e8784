"""The trained language models under the gate of ``--arch gated_lm``.

A new run reads their checkpoints. The gated model's own checkpoint holds their weights, and the flags to build them.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Dict, List, Tuple, Type

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, FairseqLanguageModel
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_plugins.data.tasks import TextTask
from fairseq_plugins.fairseq_patches.checkpoints import fitting_weights
from fairseq_plugins.fairseq_patches.resume import restored_checkpoint
from fairseq_plugins.files import distinct_digests, listed_paths
from fairseq_plugins.models.checkpoints import check_checkpoints, naming_checkpoint, read_state
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.models.transformer_lm import TransformerLanguageModel
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate
from fairseq_plugins.own_parts import naming_parts

BaseFlags = Dict[str, Any]
"""``arch`` and the other flags to build a base model by: numbers and texts, which checkpoints may hold."""

BaseModel = Tuple[BaseFlags, FairseqLanguageModel]

FLAGS_IN_CHECKPOINT = "base_model_flags"
"""Key of the flags of all base models, a list, among the flags of a gated model's checkpoint."""

_NO_PATH = "--base-model: give the checkpoint of a trained language model, or several joined by colons"


def base_models(args: Namespace, task: TextTask) -> List[FairseqLanguageModel]:
    """The base models of a gated model, in the order of ``--base-model``.

    A new run reads the checkpoints of ``args.base_model``, joined by colons. A resumed run reads the base models from
    the checkpoint that it resumes, and compares base files that still exist. Both keep the flags of the base models in
    ``args``. If ``args`` come from a checkpoint, they hold these flags already: the models are built by them, and their
    weights are loaded with the gate's.

    Args:
        args: flags of the gated model.
        task: holds the dictionary that all models read.

    Raises:
        UserError: if no model is named, one is named twice, a checkpoint is missing, damaged, of another vocabulary,
            or holds another kind of model, or a resumed run has other base models.
    """
    kept = getattr(args, FLAGS_IN_CHECKPOINT, None)
    if kept is not None:
        return [_build(flags, args, task) for flags in kept]
    paths = _base_model_paths(args)
    found = _resumed_base_models(args, task, paths)
    if not found:
        if not paths:
            raise UserError(_NO_PATH)
        check_checkpoints(paths)
        found = [_read(path, args, task) for path in paths]
    setattr(args, FLAGS_IN_CHECKPOINT, [flags for flags, _ in found])
    return [model for _, model in found]


def _base_model_paths(args: Namespace) -> List[str]:
    """The checkpoints that ``--base-model`` names; empty if it is not given."""
    given: str = getattr(args, "base_model", None) or ""
    paths = listed_paths(given) if given else []
    if not all(paths):
        raise UserError(_NO_PATH)
    if len(paths) > 1:
        distinct_digests(paths, flag="--base-model")
    return paths


def _resumed_base_models(args: Namespace, task: TextTask, paths: List[str]) -> List[BaseModel]:
    """The base models in the checkpoint that a run resumes. Empty if it resumes none, or one of another kind.

    Raises:
        UserError: if ``--base-model`` names files that still exist and hold other models.
    """
    resumed = restored_checkpoint(args)
    if resumed is None:
        return []
    state = read_state(resumed)
    found: List[BaseModel] = []
    for n, flags in enumerate(_saved_flags(state).get(FLAGS_IN_CHECKPOINT) or ()):
        prefix = f"decoder.members.{n}."
        weights = {f"decoder.{name[len(prefix) :]}": w for name, w in state["model"].items() if name.startswith(prefix)}
        with naming_checkpoint(resumed), fitting_weights(resumed):
            model = _build(flags, args, task)
            model.load_state_dict(weights)
        found.append((flags, model))
    pairs = [(_read(path, args, task), one) for path, one in zip(paths, found) if Path(path).is_file()]
    if found and paths and (len(paths) != len(found) or not all(_are_equal(*pair) for pair in pairs)):
        raise UserError(
            f"{resumed} holds a gate on other base models than --base-model {':'.join(paths)}: take another "
            "--save-dir, start from other weights, or leave --base-model out to continue with the checkpoint's"
        )
    return found


def _are_equal(read: BaseModel, saved: BaseModel) -> bool:
    """Whether a base model from its own file has the flags and weights of one from a gated model's checkpoint."""
    return read[0] == saved[0] and all(map(_is_rounded, read[1].parameters(), saved[1].parameters()))


def _is_rounded(weight: Tensor, saved: Tensor) -> bool:
    """Whether a weight is the saved one, up to the rounding of a run in 16 bits, which fairseq saves in 32 bits."""
    dtypes = (weight.dtype, torch.bfloat16, torch.float16)
    return any(torch.equal(weight.to(dtype).to(weight.dtype), saved) for dtype in dtypes)


def _read(path: str, args: Namespace, task: TextTask) -> BaseModel:
    """The flags of a checkpoint's model, and the model with its weights."""
    state = read_state(path)
    saved = _saved_flags(state)
    with naming_checkpoint(path), naming_parts(state.get("cfg"), name=f"{path} "):
        parser = ArgumentParser(add_help=False)
        _base_class(saved.get("arch")).add_args(parser)
        names = {"arch", *(action.dest for action in parser._actions)}
        flags = {name: value for name, value in saved.items() if name in names}
        gate = flags.get(OUTPUT_GATES.destination, NoGate.name)
        if gate != NoGate.name:
            raise UserError(f"{path} has a gate already, {OUTPUT_GATES.flag} {gate}: give a model without one")
        model = _build(flags, args, task)
        with fitting_weights(path):
            model.load_state_dict(state["model"])
    return flags, model


def _saved_flags(state: Dict[str, Any]) -> Dict[str, Any]:
    """The flags of a checkpoint's model. After ``fairseq-hydra-train`` its name, ``_name``, is the ``arch``."""
    config = state.get("cfg")
    saved = state.get("args") if config is None else config.get("model")
    if isinstance(saved, Namespace):
        return vars(saved)
    flags: Any = {} if saved is None else OmegaConf.to_container(saved)
    return {**flags, "arch": flags.get("_name")}


def _build(flags: BaseFlags, args: Namespace, task: TextTask) -> FairseqLanguageModel:
    """Build a base model by its flags, with the precision of the gated model's ``args`` where they give one.

    Its loss is always the fused one, which never holds the logits of all tokens.
    """
    model_class = _base_class(flags.get("arch"))
    own = Namespace(**{name: value for name, value in flags.items() if name != "output_loss"})
    if getattr(args, "output_precision", None) is not None:
        own.output_precision = args.output_precision
    ARCH_CONFIG_REGISTRY[own.arch](own)
    return model_class.build_model(own, task)


def _base_class(arch: object) -> Type[FairseqLanguageModel]:
    """The class of an architecture that can be a base model."""
    model_class = ARCH_MODEL_REGISTRY.get(arch) if isinstance(arch, str) else None
    if model_class is None or not issubclass(model_class, (RecurrentLanguageModel, TransformerLanguageModel)):
        raise UserError(
            f"--arch {arch} cannot be a base model: take a language model of this package, such as lstm_lm_awd or "
            "transformer_lm_doc"
        )
    return model_class
