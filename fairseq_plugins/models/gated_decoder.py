"""Trained language models under one gate, which alone learns.

Shapes: M models, B batch rows, T time steps, D_0 .. D_N widths of a model's embedding and layers, V vocabulary.
"""

from dataclasses import replace
from typing import Any, Dict, Literal, Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.models.recurrent_decoder import RecurrentDecoder
from fairseq_plugins.models.stream_decoder import ScoredTokens, StreamDecoder
from fairseq_plugins.modules.carried_state import DecoderState
from fairseq_plugins.modules.module_sequence import ModuleSequence
from fairseq_plugins.modules.recurrent_stack import RecurrentStack
from fairseq_plugins.output_layers.ensemble import ensemble_log_probs, ensemble_loss, joint_states
from fairseq_plugins.output_layers.gate import OutputGate
from fairseq_plugins.output_layers.noise import Noise
from fairseq_plugins.output_layers.output_precision import OutputPrecision

BaseWeights = Literal["read", "awaited"]
"""Whether the members have their weights, or get them by ``load_state_dict``."""


class GatedDecoder(StreamDecoder):
    """P = (1/M) sum_m softmax(g * s_m) with the logits s_m of M trained models and one gate g.

    The models are frozen: they have no gradients, and are in evaluation mode, without dropout, in training as well. Of
    their settings the precision of the output layer alone follows the mode. One model is exactly that model with its
    gate set.

    Args:
        dictionary: the host's dictionary; its size is V.
        members: the models' decoders, without gates of their own.
        gate: reads what :func:`~fairseq_plugins.output_layers.ensemble.joint_states` makes of their states.
        weights: of the members; where they are awaited nothing is scored before a state is loaded.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        members: Sequence[RecurrentDecoder],
        gate: OutputGate,
        weights: BaseWeights = "read",
    ):
        super().__init__(dictionary)
        self.weights = weights
        self.members: ModuleSequence[RecurrentDecoder] = ModuleSequence(members)
        self.members.requires_grad_(False)
        self.gate = gate
        self.train()

    @property
    def stack(self) -> RecurrentStack:
        """The recurrent layers.

        Raises:
            ValueError: if there are several models.
        """
        if len(self.members) > 1:
            raise ValueError(f"the gated model has {len(self.members)} base models: look into the layers of one alone")
        return self.members[0].stack

    def train(self, mode: bool = True) -> "GatedDecoder":
        """Train the gate; the members stay in evaluation mode, but for the precision of their output layers."""
        self.training = mode
        for part in self.children():
            part.train(mode and part is not self.members)
        for module in self.members.modules():
            if isinstance(module, OutputPrecision):
                module.train(mode)
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
    ) -> ScoredTokens:
        if noise is not None:
            raise ValueError(
                "--criterion noise_contrastive has no gates: train --arch gated_lm with --criterion "
                "regularized_cross_entropy"
            )
        if self.weights == "awaited":
            raise ValueError(
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
        scores = replace(scores, gate_state=gate_state)
        return ScoredTokens(joint, scores, {"members": [layers for _, layers in read], "gate": gate_state})
