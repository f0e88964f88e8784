"""Trained language models under an Input-to-Output Gate, which alone is trained (Takase, Suzuki & Nagata 2017).

The base models are read from their checkpoints when training starts. The gated model's own checkpoint is whole: it
holds their weights, and the flags to build them by, so that it outlives their files.

Shapes: M base models, B batch rows, T time steps, V vocabulary.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Sequence, Tuple, Type

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    FairseqLanguageModel,
    build_model,
    register_model,
    register_model_architecture,
)
from torch import Tensor

from fairseq_plugins.components import ModelFlags
from fairseq_plugins.data.text import TextTask, check_reads_one_text, file_digest
from fairseq_plugins.fairseq_patches.checkpoints import fitting_weights
from fairseq_plugins.fairseq_patches.resume import restored_checkpoint
from fairseq_plugins.models.checkpoints import check_checkpoints, keep_vocabularies, naming_checkpoint, read_state
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, apply_preset
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel, StreamDecoder
from fairseq_plugins.models.sliding_context import SlidingDecoder
from fairseq_plugins.models.transformer_lm import TransformerLanguageModel
from fairseq_plugins.modules.cell import DecoderState
from fairseq_plugins.modules.layers import ModuleSequence
from fairseq_plugins.modules.stack import RecurrentStack
from fairseq_plugins.options import UserError, check_choices, listed_paths
from fairseq_plugins.output_layers.base import OutputPrecision, OutputPrecisionName, check_takes_gate
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate, OutputGate, build_output_gate
from fairseq_plugins.output_layers.mixture import ensemble_log_probs, ensemble_loss, joint_states
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores
from fairseq_plugins.parts import naming_parts

BaseWeights = Literal["read", "awaited"]
"""Whether the base models have their weights, or still await them from ``load_state_dict``."""


class GatedDecoder(StreamDecoder):
    """P = (1/M) sum_m softmax(g * s_m) with the logits s_m of M trained models and one gate g.

    The base models are frozen: without gradients, and in evaluation mode during training. With M = 1 the model
    equals its base model with the gate set.

    Args:
        dictionary: fairseq's dictionary; its size is V.
        members: the base models' decoders, without gates of their own.
        gate: reads the :func:`~fairseq_plugins.output_layers.mixture.joint_states` of the members.
        weights: of the members. Awaited weights have to be loaded before anything is scored.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        members: Sequence[StreamDecoder],
        gate: OutputGate,
        weights: BaseWeights = "read",
    ):
        super().__init__(dictionary)
        self.weights = weights
        self.members: ModuleSequence[StreamDecoder] = ModuleSequence(members)
        self.members.requires_grad_(False)
        self.gate = gate
        self.train()

    @property
    def stack(self) -> RecurrentStack:
        """The recurrent layers.

        Raises:
            UserError: if there are several models.
        """
        if len(self.members) > 1:
            raise UserError(f"the gated model has {len(self.members)} base models: look into the layers of one alone")
        stack: Any = self.members[0].stack
        return stack

    def train(self, mode: bool = True) -> "GatedDecoder":
        """Train the gate. The members stay in evaluation mode.

        Only the precision of their output layers and the context of Transformers, which is none in training, follow.
        """
        self.training = mode
        for part in self.children():
            part.train(mode and part is not self.members)
        for module in self.members.modules():
            if isinstance(module, (OutputPrecision, SlidingDecoder)):
                module.training = mode
        return self

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.weights = "read"

    def initial_state(self, num_rows: int) -> DecoderState:
        rows = self.members[0].embedding.weight.new_empty(num_rows, 0)
        return {
            "members": [member.initial_layers(num_rows) for member in self.members],
            "gate": self.gate.initial_state(rows),
        }

    def score(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        incremental: bool,
        target: Optional[Tensor],
        noise: Optional[Noise] = None,
        **loss: Any,
    ) -> Tuple[DecoderStates, Scores, DecoderState]:
        if noise is not None:
            raise UserError(
                "--criterion noise_contrastive has no gates: train --arch gated_lm with --criterion "
                "regularized_cross_entropy"
            )
        if self.weights == "awaited":
            raise UserError(
                "the base models have no weights yet: load the gated model's checkpoint, or build it by flags without "
                "base_model_flags"
            )
        read = [
            member.read(tokens, layers, incremental=incremental)
            for member, layers in zip(self.members, state["members"])
        ]
        states = [states for states, _ in read]
        joint = joint_states(states)
        gate, gate_state = self.gate(joint, state["gate"])
        layers = [member.output for member in self.members]
        if target is None:
            scores = ensemble_log_probs(layers, states, gate)
        else:
            scores = ensemble_loss(layers, states, target, gate, **loss)
        state = {"members": [after for _, after in read], "gate": gate_state}
        return joint, replace(scores, gate_state=gate_state), state


BASE_CLASSES = (RecurrentLanguageModel, TransformerLanguageModel)
"""Classes of models that a gate can be put on."""

BaseFlags = Dict[str, Any]
"""``arch`` and the other flags to build a model by: numbers and texts, which checkpoints may hold."""

FLAGS_IN_CHECKPOINT = "base_model_flags"
"""Key of the base models' flags, a list of :data:`BaseFlags`, among the flags of a gated model's checkpoint."""

_NO_PATH = "--base-model: give the checkpoint of a trained language model, or several joined by colons"


def base_models(
    args: Namespace, task: TextTask, *, overrides: BaseFlags
) -> Tuple[List[FairseqLanguageModel], BaseWeights]:
    """Build the base models of a gated model, in the order of ``--base-model``.

    A new run reads the checkpoints of ``args.base_model``, joined by colons, and stores their flags in ``args``. If
    ``args`` come from a gated model's checkpoint, they hold these flags: the models are built by them and await the
    weights of that checkpoint. A resumed run does the same with the checkpoint that it resumes. Base files that still
    exist are compared with it.

    Args:
        args: flags of the gated model.
        task: holds the dictionary that all models read.
        overrides: flags that differ from those of the base models' runs.

    Raises:
        UserError: if no model is named, one is named twice, a checkpoint is missing, damaged, of another vocabulary,
            or holds another kind of model, or a resumed run has other base models.
    """
    kept: Optional[List[BaseFlags]] = getattr(args, FLAGS_IN_CHECKPOINT, None)
    if kept is not None:
        return [build_base_model(flags, task, overrides) for flags in kept], "awaited"
    paths = _base_model_paths(args)
    resumed = restored_checkpoint(args)
    if resumed is not None:
        state = read_state(resumed)
        kept = getattr(saved_flags(state), FLAGS_IN_CHECKPOINT, None)
        if kept is not None:
            weights = state["model"]
            if not _are_saved_models(paths, task, kept, weights):
                raise UserError(
                    f"{resumed} holds a gate on other base models than --base-model {':'.join(paths)}: take another "
                    "--save-dir, start from other weights, or leave --base-model out to go on with those of the "
                    "checkpoint"
                )
            setattr(args, FLAGS_IN_CHECKPOINT, kept)
            return [build_base_model(flags, task, overrides) for flags in kept], "awaited"
    if not paths:
        raise UserError(_NO_PATH)
    check_checkpoints(paths)
    read = [read_base_model(path, task, overrides) for path in paths]
    setattr(args, FLAGS_IN_CHECKPOINT, [flags for flags, _ in read])
    return [model for _, model in read], "read"


def _base_model_paths(args: Namespace) -> List[str]:
    """The checkpoints that ``--base-model`` names; empty if it is not given."""
    given: str = getattr(args, "base_model", None) or ""
    paths = listed_paths(given) if given else []
    if not all(paths):
        raise UserError(_NO_PATH)
    files = [Path(path).resolve() for path in paths]
    for n, path in enumerate(paths):
        if files[n] in files[:n]:
            raise UserError(f"--base-model: {path} is given twice; give each model of an ensemble once")
    digests = [file_digest(file) if len(paths) > 1 and file.is_file() else path for file, path in zip(files, paths)]
    for n, path in enumerate(paths):
        if digests[n] in digests[:n]:
            same = paths[digests.index(digests[n])]
            raise UserError(f"--base-model: {path} is a copy of {same}; give each model of an ensemble once")
    return paths


def _are_saved_models(paths: List[str], task: TextTask, kept: List[BaseFlags], weights: Dict[str, Tensor]) -> bool:
    """Whether base checkpoints, as far as their files still exist, have the flags and weights of a gated model's."""
    if len(paths) not in (0, len(kept)):
        return False
    for n, path in enumerate(paths):
        if Path(path).is_file():
            flags, model = read_base_model(path, task, {})
            if flags != kept[n] or not all(
                _equals_saved(weight, weights.get(f"decoder.members.{n}.{name}"))
                for name, weight in model.decoder.named_parameters()
            ):
                return False
    return True


def _equals_saved(weight: Tensor, saved: Optional[Tensor]) -> bool:
    """Whether a weight is the saved one. A run in 16 bits has rounded it, and fairseq saves that in 32 bits."""
    rounded = (weight.to(dtype).to(weight.dtype) for dtype in (weight.dtype, torch.bfloat16, torch.float16))
    return saved is not None and any(torch.equal(one, saved.to(weight.dtype)) for one in rounded)


def read_base_model(path: str, task: TextTask, overrides: BaseFlags) -> Tuple[BaseFlags, FairseqLanguageModel]:
    """The flags of a checkpoint's model, and the model with its weights.

    Args:
        path: of the checkpoint.
        task: holds the dictionary that the model reads.
        overrides: flags that differ from those of its run.

    Raises:
        UserError: if the checkpoint is damaged, of another vocabulary, or holds another kind of model.
    """
    state = read_state(path)
    flags = _checked_flags(state, path)
    with naming_checkpoint(path), naming_parts(state.get("cfg"), name=f"{path} "):
        model = build_base_model(flags, task, overrides)
        with fitting_weights(path):
            model.load_state_dict(state["model"])
    return flags, model


def build_base_model(flags: BaseFlags, task: TextTask, overrides: BaseFlags) -> FairseqLanguageModel:
    """Build a model by its flags. Its loss is always the fused one, which never holds the logits of all tokens.

    Raises:
        UserError: if the flags are of another kind of model.
    """
    arch = flags.get("arch")
    if _base_class(arch) is None:
        raise UserError(f"--arch {arch} is no language model of this package")
    taken = {name: value for name, value in {**flags, **overrides}.items() if name != "output_loss"}
    # fairseq's models of argparse flags take these
    # pyrefly: ignore[bad-argument-type]
    model = build_model(Namespace(**taken), task)
    assert isinstance(model, BASE_CLASSES)
    return model


def _base_class(arch: object) -> Optional[Type[FairseqLanguageModel]]:
    """The class of an architecture if it can be a base model."""
    model_class = ARCH_MODEL_REGISTRY.get(arch) if isinstance(arch, str) else None
    return model_class if model_class is not None and issubclass(model_class, BASE_CLASSES) else None


def saved_flags(state: Dict[str, Any]) -> Namespace:
    """The flags of a checkpoint's model. A model with a dataclass of fairseq's keeps only its name, as ``arch``."""
    config = state.get("cfg")
    saved = state.get("args") if config is None else config.get("model")
    if isinstance(saved, Namespace):
        return saved
    return Namespace(arch=None if saved is None else saved.get("_name"))


def _checked_flags(state: Dict[str, Any], path: str) -> BaseFlags:
    """The flags to build a checkpoint's model by.

    Raises:
        UserError: if it is no language model of this package, or has a gate.
    """
    saved = vars(saved_flags(state))
    model_class = _base_class(saved.get("arch"))
    if model_class is None:
        raise UserError(
            f"{path} holds a model of --arch {saved.get('arch')}: --base-model takes language models of this package, "
            "such as lstm_lm_awd or transformer_lm_doc"
        )
    gate = saved.get(OUTPUT_GATES.destination, NoGate.name)
    if gate != NoGate.name:
        raise UserError(f"{path} has a gate already, {OUTPUT_GATES.flag} {gate}: give a model without one")
    parser = ArgumentParser(add_help=False)
    model_class.add_args(parser)
    names = {"arch", *(action.dest for action in parser._actions)}
    return {name: value for name, value in saved.items() if name in names}


@dataclass
class GatedLanguageModelConfig(FairseqDataclass):
    """Flags of the gated language models; the gates have their own."""

    base_model: str = field(
        default="",
        metadata={
            "help": "checkpoint of the trained language model that is gated; of several, joined by colons, the "
            "probabilities are averaged under one gate"
        },
    )
    output_precision: Optional[OutputPrecisionName] = field(
        default=None,
        metadata={"help": "of the base models' output layers, in training and decoding (default: what each has)"},
    )


FLAGS = ModelFlags(GatedLanguageModelConfig, OUTPUT_GATES)


@register_model("gated_lm")
class GatedLanguageModel(FairseqLanguageModel):
    """Frozen language models whose logits are multiplied by a gate that learns (:class:`GatedDecoder`)."""

    flags = FLAGS

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "GatedLanguageModel":
        """Build the model for the task's dictionary; see :func:`base_models`.

        Raises:
            UserError: on a value that does not fit, or a base model that cannot be used, with the remedy.
        """
        check_reads_one_text(task)
        config = check_choices(GatedLanguageModelConfig.from_namespace(args))
        if args.output_gate == NoGate.name:
            raise UserError(f"--output-gate {NoGate.name}: nothing would learn; take --output-gate iog")
        overrides: BaseFlags = {}
        if config.output_precision is not None:
            overrides = {"output_precision": config.output_precision}
        bases, weights = base_models(args, task, overrides=overrides)
        members = [model.decoder for model in bases]
        for member in members:
            check_takes_gate(member.output, gate=args.output_gate)
        ends = [member.layer_widths for member in members]
        widths = ends[0] if len(ends) == 1 else [sum(one[n] for one in ends) for n in (0, -1)]
        gate = build_output_gate(args, dictionary=task.source_dictionary, layer_widths=widths)
        model = cls(GatedDecoder(task.source_dictionary, members=members, gate=gate, weights=weights))
        return keep_vocabularies(model, task, embeddings=[members[0].embedding])


for name, preset in GATED_LANGUAGE_MODELS.items():
    register_model_architecture("gated_lm", name)(partial(apply_preset, preset))
