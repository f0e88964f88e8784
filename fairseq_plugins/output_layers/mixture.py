"""What mixtures of softmaxes have in common.

Shapes: B batch, T time, D_n width of layer n, V vocabulary, J experts, d latent width (= embedding).
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.choices import choices
from fairseq_plugins.flags.registry import option_names
from fairseq_plugins.flags.values import parse_int_list
from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.initialisation import StartsByLayer, glorot_uniform_
from fairseq_plugins.modules.label_network import ACTIVATIONS
from fairseq_plugins.modules.linear import Linear
from fairseq_plugins.modules.module_sequence import ModuleSequence
from fairseq_plugins.modules.recurrent_state import State
from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.ops.softmax_entropies import softmax_entropies
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.labels import LabelNetworkOptions, label_network
from fairseq_plugins.output_layers.projected import ProjectedOptions, ProjectedOutput
from fairseq_plugins.output_layers.word_projection import WordProjection

LATENT_MASKS = {"shared": (1, 2), "per-expert": (1,)}
"""Dimensions of k, (B, T, J, d), that share a dropout mask: the words of a row always do."""
LatentMask = choices([*LATENT_MASKS])
LatentActivation = choices(["tanh", "linear"])
LabelEncoder = choices(["none", "drill"])


@dataclass
class MixtureOptions(LabelNetworkOptions):
    """Flags of the mixture layers."""

    experts_per_layer: Optional[str] = field(
        default=None,
        metadata={
            "help": 'number of softmaxes that read each layer, "i_0 i_1 .. i_N", where layer 0 is the '
            "input embedding (default: four on the last layer for mos, three on it and one on the layer below for doc)"
        },
    )
    latent_activation: LatentActivation = field(
        default="tanh",
        metadata={
            "help": "of the latent vectors k_j: tanh as in the published programs, linear as in DOC's eq. 11 "
            "(default: tanh)"
        },
    )
    latent_dropout: float = field(
        default=0.3, metadata={"help": "dropout rate of the latent vectors k_j, 0 <= rate < 1 (default: 0.3)"}
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


class MixtureOutput(StartsByLayer, ProjectedOutput):
    """P = sum_j pi_j softmax(L k_j + b)  (Takase et al. 2018, eq. 7, 10, 11).

    k_j = dropout(act(W_j h^{n(j)} + a_j)) with d features, pi = softmax(W_pi h^N) without a bias, L and b
    common to all experts, L the label embedding E, which is the input's where the model shares it, or with
    ``--label-encoder drill`` E^(k) of :class:`fairseq_plugins.output_layers.drill.Drill`. Experts are ordered by the
    layer they read. a_j follows the published programs, and so does act = tanh; in eq. 11 act is the identity.

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
        self.latents: ModuleSequence[Linear] = ModuleSequence(
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
        self.save_setting("activation_name", flag="--latent-activation", value=options.latent_activation, older="tanh")
        self.latent_activation = ACTIVATIONS[options.latent_activation]
        self.latent_dropout = BroadcastDropout(
            options.latent_dropout,
            flag="--latent-dropout",
            shared_dims=LATENT_MASKS[options.latent_mask or self.default_mask],
        )

    def start_by_layer(self) -> None:
        """Each W_j is drawn for itself."""
        for n, linear in zip(self.source_layers, self.latents):
            glorot_uniform_(linear.weight, num_stacked=self.experts_per_layer[n])

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        if getattr(args, "label_encoder", "none") != "none":
            return {}
        of_labels = option_names(LabelNetworkOptions) - option_names(ProjectedOptions)
        return dict.fromkeys(of_labels, "add --label-encoder drill")

    @staticmethod
    def default_experts(num_layers: int) -> List[int]:
        """i_0 .. i_N where ``--experts-per-layer`` is not given."""
        raise NotImplementedError

    @classmethod
    def read_experts(cls, text: Optional[str], *, num_layers: int) -> List[int]:
        """Check ``--experts-per-layer`` against the layers that can be read.

        Raises:
            ValueError: on a wrong length, a negative number or no expert at all.
        """
        if text is None:
            return cls.default_experts(num_layers)
        example = " ".join(map(str, cls.default_experts(num_layers)))
        experts = parse_int_list(text, flag="--experts-per-layer", example=example)
        if len(experts) != num_layers:
            raise ValueError(
                f'--experts-per-layer "{text}" has {len(experts)} numbers: give {num_layers}, one for the embedding '
                f"and one for each of the {num_layers - 1} layers above it"
            )
        if min(experts) < 0:
            raise ValueError(f'--experts-per-layer "{text}": a number of experts cannot be negative')
        if sum(experts) == 0:
            raise ValueError(f'--experts-per-layer "{text}" has no expert: at least one number must be above 0')
        return experts

    def latent_vectors(self, layers: Sequence[Tensor]) -> Tensor:
        """k, (B, T, J, d), after dropout."""
        latents = [
            linear(layers[n]).unflatten(-1, (-1, self.latent_width))
            for n, linear in zip(self.source_layers, self.latents)
        ]
        return self.latent_dropout(self.latent_activation(torch.cat(latents, dim=2)))

    def prior_scores(self, layers: Sequence[Tensor]) -> Tensor:
        """Logits of pi, (B, T, J)."""
        return self.prior(layers[-1])

    def log_prior(self, layers: Sequence[Tensor]) -> Tensor:
        """log pi, (B, T, J), in float32 or wider."""
        scores = self.prior_scores(layers)
        return torch.log_softmax(scores, dim=-1, dtype=accumulation_dtype(scores))

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        log_prior = self.log_prior(states.layers)
        return self.latent_vectors(states.layers), log_prior

    @torch.no_grad()
    def expert_entropies(self, states: DecoderStates, gate_state: Optional[State] = None) -> Tensor:
        """-sum_v p_j(v) log p_j(v) of every softmax p_j, (B, T, J), in nats, without a gradient.

        ``gate_state`` is that of the :class:`Scores` of the tokens before, None at the start.
        """
        latents, _ = self.mixture(states)
        gate, _ = self.gate_after(states, gate_state)
        return softmax_entropies(latents, self.projection.label_matrix(), self.projection.bias, gate=gate)

    def mixture_weights(self, log_prior: Tensor) -> Tensor:
        return log_prior.exp()
