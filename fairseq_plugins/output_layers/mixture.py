"""Mixtures of softmaxes: MoS and DOC.

Shapes: B batch, T time, D_n width of layer n (D_0: embedding), V vocabulary, J experts, d width of the expert hidden
states k (= D_0).
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.modules.cell import State
from fairseq_plugins.modules.layers import BroadcastDropout, Linear, ModuleSequence
from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.ops.mixture_distribution import softmax_entropies
from fairseq_plugins.options import UserError, check_whole, choices, parse_numbers
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.labels import ACTIVATIONS, LabelNetworkOptions, label_network
from fairseq_plugins.output_layers.projected import ProjectedOptions, ProjectedOutput, WordProjection
from fairseq_plugins.output_layers.scores import DecoderStates
from fairseq_plugins.parts import option_names

LATENT_MASKS = {"shared": (1, 2), "per-expert": (1,)}
"""Dimensions of k, (B, T, J, d), that share a dropout mask. The time steps of a row always do."""
LatentMask = choices([*LATENT_MASKS])
LatentActivation = choices(["tanh", "linear"])
LabelEncoder = choices(["none", "drill"])


@dataclass
class MixtureOptions(LabelNetworkOptions):
    """Flags of the mixture layers."""

    experts_per_layer: Optional[str] = field(
        default=None,
        metadata={
            "help": 'number of softmaxes that read each layer, "i_0 i_1 .. i_N", where layer 0 is the input embedding; '
            "a shorter list is for the last layers (default: 4 for mos, 1 3 for doc)"
        },
    )
    latent_activation: LatentActivation = field(
        default="tanh",
        metadata={
            "help": "activation of the expert hidden states k_j: tanh as in the published programs, linear as in DOC's "
            "eq. 11 (default: tanh)"
        },
    )
    latent_dropout: float = field(
        default=0.3, metadata={"help": "dropout rate of the expert hidden states k_j, 0 <= rate < 1 (default: 0.3)"}
    )
    latent_mask: Optional[LatentMask] = field(
        default=None,
        metadata={
            "help": "whether all experts of a row share one latent dropout mask "
            "(default: per-expert for mos, shared for doc)"
        },
    )
    label_encoder: LabelEncoder = field(
        default="none",
        metadata={
            "help": "drill: the label embedding passes DRILL's network, once for all experts; the --label "
            "flags set it (default: none)"
        },
    )


class MixtureOutput(ProjectedOutput):
    """P = sum_j pi_j softmax(L k_j + b)  (Takase et al. 2018, eq. 7, 10, 11).

    Expert hidden states: k_j = dropout(act(W_j h^{n(j)} + a_j)), with d features. Prior: pi = softmax(W_pi h^N),
    without a bias. All experts share L and b. L is the label embedding, or with ``--label-encoder drill`` the E^(k) of
    :class:`~fairseq_plugins.output_layers.softmax.Drill`. Experts are ordered by the layer they read. The biases a_j
    and act = tanh follow the published programs. In eq. 11 act is the identity.

    ``mixture_weights`` of its :class:`Scores` is pi, (B, T, J).
    """

    Options = MixtureOptions
    default_mask: str

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: MixtureOptions,
    ):
        super().__init__(options)
        self.experts_per_layer = self.read_experts(options.experts_per_layer, num_layers=len(layer_widths))
        self.num_experts = sum(self.experts_per_layer)
        self.latent_width = layer_widths[0]
        self.source_layers = [n for n, num_experts in enumerate(self.experts_per_layer) if num_experts > 0]
        self.latent_projections: ModuleSequence[Linear] = ModuleSequence(
            Linear(layer_widths[n], self.experts_per_layer[n] * self.latent_width) for n in self.source_layers
        )
        self.prior = Linear(layer_widths[-1], self.num_experts, bias=False)
        self.projection = WordProjection(
            self.latent_width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_network(self.latent_width, options) if options.label_encoder == "drill" else None,
        )
        self.latent_activation = ACTIVATIONS[options.latent_activation]
        self.latent_dropout = BroadcastDropout(
            options.latent_dropout,
            flag="--latent-dropout",
            shared_dims=LATENT_MASKS[options.latent_mask or self.default_mask],
        )

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        if getattr(args, "label_encoder", "none") != "none":
            return {}
        of_labels = option_names(LabelNetworkOptions) - option_names(ProjectedOptions)
        return dict.fromkeys(of_labels, "add --label-encoder drill")

    @staticmethod
    def default_experts(num_layers: int) -> List[int]:
        """i_0 .. i_N if ``--experts-per-layer`` is not given."""
        raise NotImplementedError

    @classmethod
    def read_experts(cls, text: Optional[str], *, num_layers: int) -> List[int]:
        """Parse ``--experts-per-layer``. A list that is shorter than the number of layers is for the last ones.

        Raises:
            UserError: on a longer list, a negative number or no expert at all.
        """
        if text is None:
            return cls.default_experts(num_layers)
        example = " ".join(map(str, cls.default_experts(num_layers)))
        experts = parse_numbers(text, int, flag="--experts-per-layer", example=example)
        if len(experts) > num_layers:
            raise UserError(
                f'--experts-per-layer "{text}" has {len(experts)} numbers: give at most {num_layers}, one for the '
                f"embedding and one for each of the {num_layers - 1} layers above it"
            )
        if min(experts) < 0:
            raise UserError(f'--experts-per-layer "{text}": a number of experts cannot be negative')
        if sum(experts) == 0:
            raise UserError(f'--experts-per-layer "{text}" has no expert: at least one number must be above 0')
        return [0] * (num_layers - len(experts)) + experts

    def expert_hidden_states(self, layers: Sequence[Tensor]) -> Tensor:
        """k, (B, T, J, d), after dropout."""
        hidden = [
            linear(layers[n]).unflatten(-1, (-1, self.latent_width))
            for n, linear in zip(self.source_layers, self.latent_projections)
        ]
        return self.latent_dropout(self.latent_activation(torch.cat(hidden, dim=2)))

    def prior_scores(self, layers: Sequence[Tensor]) -> Tensor:
        """Logits of pi, (B, T, J)."""
        return self.prior(layers[-1])

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        scores = self.prior_scores(states.layers)
        log_prior = torch.log_softmax(scores, dim=-1, dtype=accumulation_dtype(scores))
        return self.expert_hidden_states(states.layers), log_prior

    @torch.no_grad()
    def expert_entropies(self, states: DecoderStates, gate_state: Optional[State] = None) -> Tensor:
        """Entropy of every softmax, -sum_v p_j(v) log p_j(v), (B, T, J), in nats, without a gradient.

        ``gate_state`` is taken from the :class:`Scores` of the preceding tokens, None at the start.
        """
        hidden, _ = self.mixture(states)
        gate, _ = self.gate_after(states, gate_state)
        return softmax_entropies(hidden, self.projection.label_matrix(), self.projection.bias, gate=gate)

    def mixture_weights(self, log_prior: Tensor) -> Tensor:
        return log_prior.exp()


@OUTPUT_LAYERS.register("mos")
class MixtureOfSoftmaxes(MixtureOutput):
    """MoS: a mixture of softmaxes that all read the last layer (Yang et al. 2018).

    Raises:
        UserError: if ``--experts-per-layer`` names another layer.
    """

    default_mask = "per-expert"

    @staticmethod
    def default_experts(num_layers: int) -> List[int]:
        return [0] * (num_layers - 1) + [4]

    @classmethod
    def read_experts(cls, text: Optional[str], *, num_layers: int) -> List[int]:
        experts = super().read_experts(text, num_layers=num_layers)
        if any(experts[:-1]):
            raise UserError(
                f'--experts-per-layer "{text}": mos reads the last layer only, so all numbers but the last are 0; '
                "take --output-layer doc to read other layers"
            )
        return experts


@dataclass
class DirectOutputConnectionOptions(MixtureOptions):
    """Flags of DOC."""

    expert_warmup: int = field(
        default=0,
        metadata={
            "help": "number of initial updates in which only the experts of the last layer take part, so that "
            "attention is learned before experts below it compete (default: 0, as in the paper)"
        },
    )


@OUTPUT_LAYERS.register("doc")
class DirectOutputConnection(MixtureOutput):
    """DOC: a mixture of softmaxes that read any layers (Takase et al. 2018).

    As in the published program, the biases a_j start at zero (unless the model initialises all its parameters itself),
    and all experts of a row share one dropout mask.

    During ``--expert-warmup`` the experts of lower layers have a prior of zero. Without it an encoder-decoder may never
    learn its attention: experts below the attention soon become good language models, the prior gives them most words,
    and the experts above it get too little gradient (results/multi30k).

    Raises:
        UserError: if there is a warm-up but no expert reads the last layer.
    """

    Options = DirectOutputConnectionOptions
    default_mask = "shared"

    def __init__(self, *, options: DirectOutputConnectionOptions, **parts: Any):
        super().__init__(options=options, **parts)
        for linear in self.latent_projections:
            nn.init.zeros_(linear.bias)
        check_whole(options.expert_warmup, flag="--expert-warmup")
        if options.expert_warmup > 0 and self.experts_per_layer[-1] == 0:
            raise UserError("--expert-warmup needs an expert on the last layer: see --experts-per-layer, or give 0")
        self.expert_warmup = options.expert_warmup
        reads_lower = torch.arange(self.num_experts) < sum(self.experts_per_layer[:-1])
        self.register_buffer("reads_lower", reads_lower, persistent=False)
        # Saved, so that a checkpoint of the warm-up is evaluated as it was trained. A float, because fairseq averages
        # all buffers: 0, 1, or in between in an average over the end of the warm-up.
        self.register_buffer("warmed_up", torch.zeros(()))

    @staticmethod
    def default_experts(num_layers: int) -> List[int]:
        return [0] * (num_layers - 2) + [1, 3]

    def set_num_updates(self, num_updates: int) -> None:
        """End the warm-up. fairseq calls this before every update.

        The warm-up is never repeated in fine-tuning, which counts updates from zero. The base model of a gate is in
        evaluation mode and ignores the updates of the gate.
        """
        if self.training and num_updates >= self.expert_warmup:
            self.warmed_up.fill_(1)

    def prior_scores(self, layers: Sequence[Tensor]) -> Tensor:
        scores = super().prior_scores(layers)
        if self.expert_warmup > 0:
            scores = scores.masked_fill(self.reads_lower & (self.warmed_up == 0), float("-inf"))
        return scores
