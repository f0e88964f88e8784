"""Trained language models under an Input-to-Output Gate, which alone is trained (Takase, Suzuki & Nagata 2017).

Shapes: M base models, B batch rows, T time steps, V vocabulary.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Optional, Sequence, Tuple

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqLanguageModel, register_model, register_model_architecture
from torch import Tensor

from fairseq_plugins.components import ModelFlags
from fairseq_plugins.data.tasks import TextTask, check_reads_one_text
from fairseq_plugins.models.base_models import base_models
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.decoder import StreamDecoder, StreamState
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, apply_preset
from fairseq_plugins.models.sliding_context import SlidingDecoder
from fairseq_plugins.modules.layers import ModuleSequence
from fairseq_plugins.modules.stack import RecurrentStack
from fairseq_plugins.options import UserError, check_choices
from fairseq_plugins.output_layers.base import OutputPrecision, OutputPrecisionName, check_takes_gate
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate, OutputGate, build_output_gate
from fairseq_plugins.output_layers.mixture import ensemble_log_probs, ensemble_loss, joint_states
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores


class GatedDecoder(StreamDecoder):
    """P = (1/M) sum_m softmax(g * s_m) with the logits s_m of M trained models and one gate g.

    The base models are frozen: without gradients, and in evaluation mode during training. With M = 1 the model
    equals its base model with the gate set.

    Args:
        dictionary: fairseq's dictionary; its size is V.
        members: the base models' decoders, without gates of their own.
        gate: reads the :func:`~fairseq_plugins.output_layers.mixture.joint_states` of the members.
    """

    def __init__(self, dictionary: Dictionary, *, members: Sequence[StreamDecoder], gate: OutputGate):
        super().__init__(dictionary)
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

    def initial_state(self, num_rows: int) -> StreamState:
        rows = self.members[0].embedding.weight.new_empty(num_rows, 0)
        return {
            "members": [member.initial_layers(num_rows) for member in self.members],
            "gate": self.gate.initial_state(rows),
        }

    def score(
        self,
        tokens: Tensor,
        state: StreamState,
        *,
        incremental: bool,
        target: Optional[Tensor],
        noise: Optional[Noise] = None,
        **loss: Any,
    ) -> Tuple[DecoderStates, Scores, StreamState]:
        if noise is not None:
            raise UserError(
                "--criterion noise_contrastive has no gates: train --arch gated_lm with --criterion "
                "regularized_cross_entropy"
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
        check_choices(GatedLanguageModelConfig.from_namespace(args))
        if args.output_gate == NoGate.name:
            raise UserError(f"--output-gate {NoGate.name}: nothing would learn; take --output-gate iog")
        members = [model.decoder for model in base_models(args, task)]
        for member in members:
            check_takes_gate(member.output, gate=args.output_gate)
        ends = [member.layer_widths for member in members]
        widths = ends[0] if len(ends) == 1 else [sum(one[n] for one in ends) for n in (0, -1)]
        gate = build_output_gate(args, dictionary=task.source_dictionary, layer_widths=widths)
        model = cls(GatedDecoder(task.source_dictionary, members=members, gate=gate))
        return keep_vocabularies(model, task, embeddings=[members[0].embedding])


for name, preset in GATED_LANGUAGE_MODELS.items():
    register_model_architecture("gated_lm", name)(partial(apply_preset, preset))
