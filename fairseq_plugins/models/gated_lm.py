"""Trained language models under an Input-to-Output Gate, which alone is trained (Takase, Suzuki & Nagata 2017).

Shapes: M base models, B batch rows, T time steps, V vocabulary.
"""

from argparse import Namespace
from dataclasses import dataclass, field, replace
from typing import Any, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqLanguageModel, register_model
from torch import Tensor

from fairseq_plugins.data.tasks import TextTask, check_reads_one_text
from fairseq_plugins.models.base_models import base_models
from fairseq_plugins.models.checkpoints import keep_vocabularies
from fairseq_plugins.models.decoder import StreamDecoder, StreamState
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, register_presets
from fairseq_plugins.models.sliding_context import SlidingDecoder
from fairseq_plugins.modules.layers import ModuleSequence
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_distribution import mean_log_probs, responsibilities
from fairseq_plugins.options import UserError, check_choices
from fairseq_plugins.output_layers.base import OutputLayer, OutputPrecision, OutputPrecisionName, check_takes_gate
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate, OutputGate
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores
from fairseq_plugins.parts import ModelFlags


def _joint_states(states: Sequence[DecoderStates]) -> DecoderStates:
    """Input of the gate on several models: embeddings (B, T, sum D_0) and last layers, each concatenated over models.

    The states of a single model are returned as they are, with all layers.
    """
    if len(states) == 1:
        return states[0]
    embedding, last = (torch.cat([one.layers[n] for one in states], dim=-1) for n in (0, -1))
    top = torch.cat([one.top for one in states], dim=-1)
    return replace(states[0], layers=[embedding, last], top=top)


def _ensemble_log_probs(
    layers: Sequence[OutputLayer], states: Sequence[DecoderStates], gate: Optional[LogitGate]
) -> Scores:
    """The mean distribution of the models at every position; see :meth:`OutputLayer.log_probs`."""
    scores = [layer.log_probs(one, gate) for layer, one in zip(layers, states)]
    log_probs = [one.log_probs for one in scores if one.log_probs is not None]
    return Scores(log_probs=mean_log_probs(log_probs), mixture_weights=_joint_weights(scores))


def _ensemble_loss(
    layers: Sequence[OutputLayer],
    states: Sequence[DecoderStates],
    target: Tensor,
    gate: Optional[LogitGate],
    *,
    token_weights: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
) -> Scores:
    """Loss and NLL of the targets under the mean distribution; see :meth:`OutputLayer.target_loss`.

    The gradient of -log P is the sum of the models' gradients, each weighted by the model's posterior for the target.
    So the models are scored first, and their fused losses with these weights give the gradient without a tensor
    (B, T, V).

    Raises:
        UserError: if there are several models and ``label_smoothing`` is above zero.
    """
    if len(layers) == 1:
        return layers[0].target_loss(
            states[0], target, gate, token_weights=token_weights, label_smoothing=label_smoothing
        )
    if label_smoothing > 0:
        raise UserError(
            f"--label-smoothing {label_smoothing} does not work with several base models: leave it out, or name one "
            "by --base-model"
        )
    with torch.no_grad():
        scores = [
            layer.target_loss(one, target, gate, token_weights=token_weights) for layer, one in zip(layers, states)
        ]
        log_probs = [-one.nll for one in scores if one.nll is not None]
        nll = -mean_log_probs(log_probs)
        weights = torch.ones_like(nll) if token_weights is None else token_weights.to(nll.dtype)
        nll = nll.masked_fill(weights == 0, 0)
        loss = (weights * nll).sum()
        posterior = responsibilities(log_probs)
    if torch.is_grad_enabled():
        weighted: List[Tensor] = [
            layer.target_loss(one, target, gate, token_weights=weights * weight).output
            for layer, one, weight in zip(layers, states, posterior)
        ]
        with_gradient = torch.stack(weighted).sum()
        loss = loss + (with_gradient - with_gradient.detach())  # value of the first, gradient of the second
    return Scores(loss=loss, nll=nll, mixture_weights=_joint_weights(scores))


def _joint_weights(scores: Sequence[Scores]) -> Optional[Tensor]:
    """Prior of the softmaxes of all models, (B, T, sum J_m), or None if a model is no mixture."""
    weights = [one.mixture_weights for one in scores if one.mixture_weights is not None]
    if len(weights) < len(scores):
        return None
    return torch.cat(weights, dim=-1) / len(weights)


class GatedDecoder(StreamDecoder):
    """P = (1/M) sum_m softmax(g * s_m) with the logits s_m of M trained models and one gate g.

    The base models are frozen: without gradients, and in evaluation mode during training. With M = 1 the model
    equals its base model with the gate set.

    Args:
        dictionary: fairseq's dictionary; its size is V.
        members: the base models' decoders, without gates of their own.
        gate: reads the embeddings and last layers of several members, or all layers of a single one.
    """

    def __init__(self, dictionary: Dictionary, *, members: Sequence[StreamDecoder], gate: OutputGate):
        super().__init__(dictionary)
        self.members: ModuleSequence[StreamDecoder] = ModuleSequence(members)
        self.members.requires_grad_(False)
        self.gate = gate
        self.train()

    def train(self, mode: bool = True) -> "GatedDecoder":
        """Train the gate. The members stay in evaluation mode.

        Only their output precision and the context of Transformers, which read none in training, follow the mode.
        """
        self.training = mode
        for part in self.children():
            part.train(mode and part is not self.members)
        for module in self.members.modules():
            if isinstance(module, (OutputPrecision, SlidingDecoder)):
                module.training = mode
        return self

    def initial_state(self, num_rows: int) -> StreamState:
        rows = next(self.parameters()).new_empty(num_rows, 0)
        layers = [member.initial_layers(rows) for member in self.members]
        return {"members": layers, "gate": self.gate.initial_state(rows)}

    def score(
        self,
        tokens: Tensor,
        state: StreamState,
        *,
        incremental: bool,
        target: Optional[Tensor] = None,
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
        joint = _joint_states(states)
        gate, gate_state = self.gate(joint, state["gate"])
        layers = [member.output for member in self.members]
        if target is None:
            scores = _ensemble_log_probs(layers, states, gate)
        else:
            scores = _ensemble_loss(layers, states, target, gate, **loss)
        state = {"members": [after for _, after in read], "gate": gate_state}
        return joint, replace(scores, gate_state=gate_state), state


@dataclass
class GatedLanguageModelConfig(FairseqDataclass):
    """Flags of the gated language models; the gates have their own."""

    base_model: str = field(
        default="",
        metadata={
            "help": "checkpoint of the trained language model that is gated, or several joined by colons, whose mean "
            "probability is taken"
        },
    )
    output_precision: Optional[OutputPrecisionName] = field(
        default=None,
        metadata={"help": "precision of the base models' output layers in training (default: each model's own)"},
    )


@register_model("gated_lm")
class GatedLanguageModel(FairseqLanguageModel):
    """Frozen language models whose logits are multiplied by a gate that learns (:class:`GatedDecoder`)."""

    flags = ModelFlags(GatedLanguageModelConfig, OUTPUT_GATES)
    add_args = flags.add_args

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
        of_members = [member.output.layer_widths for member in members]
        # the gate of an ensemble reads the first and the last layers of all
        widths = of_members[0] if len(members) == 1 else [sum(one[n] for one in of_members) for n in (0, -1)]
        gate = OUTPUT_GATES.build(args, dictionary=task.source_dictionary, layer_widths=widths)
        model = cls(GatedDecoder(task.source_dictionary, members=members, gate=gate))
        return keep_vocabularies(model, task)


register_presets("gated_lm", GATED_LANGUAGE_MODELS)
