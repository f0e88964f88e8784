"""One softmax over the vocabulary.

Shapes: B batch, T time, D_N width of the last layer, C width of the labels, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.modules.layers import (
    ACTIVATIONS,
    INITIALISATIONS,
    LABEL_MASKS,
    PLACES,
    SHARED_DIMS,
    BroadcastDropout,
    LabelNetwork,
    Linear,
)
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.matmul import accumulation_dtype, linear
from fairseq_plugins.ops.noise_contrastive import chosen_logits, noise_contrast
from fairseq_plugins.options import OnOff, check_dropout, check_not_negative, check_positive, choices
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, Sharing
from fairseq_plugins.output_layers.projected import MAKE_WIDTHS_EQUAL, ProjectedOptions, ProjectedOutput, WordProjection
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores

# Log-odds that a word is the target and no noise: its logit less the offset of noise.
#
# Shapes: N tokens, K noise words, C width of the labels.


class NoiseLogOdds(NamedTuple):
    """Those of targets and noise words.

    Attributes:
        targets: (N).
        noise: (N, K).
    """

    targets: Tensor
    noise: Tensor


def noise_log_odds(projection: WordProjection, hidden: Tensor, target: Tensor, noise: Noise) -> NoiseLogOdds:
    """The log-odds of N tokens, in float32 or wider; every word that occurs is read once.

    Args:
        projection: of the logits.
        hidden: (N, C).
        target: (N).
        noise: of these tokens.
    """
    words, places = torch.unique(torch.cat([target, noise.words.flatten()]), return_inverse=True)
    labels, biases = projection.of_words(words, gradients=noise.gradients)
    dtype = accumulation_dtype(hidden)
    target_places, noise_places = places[: len(target)].unsqueeze(-1), places[len(target) :]
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, labels = hidden.to(dtype), labels.to(dtype)
        biases = None if biases is None else biases.to(dtype)
        if noise.words.dim() == 1:
            target_logits = _logits(hidden, labels, biases, target_places)
            noise_biases = None if biases is None else biases[noise_places]
            noise_logits = linear(hidden, labels.index_select(0, noise_places), noise_biases)
        else:
            chosen = torch.cat([target_places, noise_places.view(len(target), -1)], dim=1)
            logits = _logits(hidden, labels, biases, chosen)
            target_logits, noise_logits = logits[:, :1], logits[:, 1:]
    offsets = noise.offsets if noise.words.dim() == 1 else noise.offsets.flatten(0, -2)
    return NoiseLogOdds(
        targets=target_logits.squeeze(-1) - noise.target_offsets.flatten().to(dtype),
        noise=noise_logits - offsets.to(dtype),
    )


def _logits(hidden: Tensor, labels: Tensor, biases: Optional[Tensor], chosen: Tensor) -> Tensor:
    logits = chosen_logits(hidden, labels, chosen)
    return logits if biases is None else logits + biases[chosen]


class SoftmaxOutput(ProjectedOutput):
    """P = softmax(L g(h^N) + b); g is the identity unless a subclass says otherwise."""

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        """g: (B, T, D_N) to (B, T, C)."""
        return hidden

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        latents = self.encode_hidden(states.layers[-1]).unsqueeze(-2)
        return latents, latents.new_zeros(latents.shape[:-1], dtype=accumulation_dtype(latents))

    def noise_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        gate: Optional[LogitGate] = None,
        *,
        noise: Noise,
        token_weights: Optional[Tensor] = None,
    ) -> Scores:
        """The loss by which the targets are told from noise; only the rows of L of these words are read.

        Raises:
            ValueError: with a gate, a margin or an output layer in bfloat16.
        """
        if gate is not None:
            raise ValueError(
                f"--criterion noise_contrastive has no gates: leave --output-gate {self.gate.name} out, or train with "
                "--criterion regularized_cross_entropy"
            )
        if self.adversarial_epsilon > 0:
            raise ValueError(
                f"--criterion noise_contrastive has no --adversarial-epsilon {self.adversarial_epsilon}: leave it out"
            )
        self._check_trains_in_precision_of_model("--criterion noise_contrastive")
        hidden = self.encode_hidden(states.layers[-1]).flatten(0, -2)
        log_odds = noise_log_odds(self.projection, hidden, target.flatten(), noise)
        is_hit = (noise.words == target.unsqueeze(-1)).flatten(0, -2) if noise.hits == "left-out" else None
        losses = noise_contrast(*log_odds, is_hit)
        if token_weights is not None:
            weights = token_weights.detach().flatten()
            losses = losses.masked_fill(weights == 0, 0) * weights
        return Scores(loss=losses.sum())


@OUTPUT_LAYERS.register("full")
class FullSoftmax(SoftmaxOutput):
    """Softmax with a matrix W (V, D_N) of its own."""

    sharing = Sharing.NEVER

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: ProjectedOptions,
    ):
        super().__init__(options)
        self.projection = WordProjection(
            layer_widths[-1], len(dictionary), shared_weight=None, bias=options.output_bias
        )


@OUTPUT_LAYERS.register("tied")
class TiedSoftmax(SoftmaxOutput):
    """Softmax whose matrix W is the input embedding (Inan et al. 2017; Press & Wolf 2017).

    Raises:
        ValueError: if the last layer is not as wide as the embedding.
    """

    sharing = Sharing.REQUIRED

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: ProjectedOptions,
    ):
        super().__init__(options)
        assert shared_weight is not None
        self.projection = WordProjection(
            layer_widths[-1], len(dictionary), shared_weight=shared_weight, bias=options.output_bias
        )


# Flags of the layers that bring labels into a joint space, and the networks that the flags describe.
#
# Shapes: V labels, B batch, T time, d embedding width.


LabelMask = choices(LABEL_MASKS)
LabelActivation = choices(sorted(ACTIVATIONS))
LabelStart = choices(INITIALISATIONS)
DropoutPlace = choices(PLACES)


@dataclass
class LabelDropoutOptions(ProjectedOptions):
    """Dropout of labels."""

    label_dropout: float = field(
        default=0.0,
        metadata={"help": "dropout rate of the labels' features, 0 <= rate < 1 (default: 0.0)"},
    )
    label_mask: LabelMask = field(
        default="variational",
        metadata={
            "help": "variational: one mask for all labels of a forward pass; standard: one for "
            "each label (default: variational)"
        },
    )


@dataclass
class LabelLayerOptions(LabelDropoutOptions):
    """One layer of a label network."""

    label_activation: LabelActivation = field(
        default="sigmoid", metadata={"help": "activation of the label network (default: sigmoid)"}
    )
    label_init: LabelStart = field(
        default="uniform",
        metadata={
            "help": "start of the label network's matrices: uniform, in plus and minus 0.1, or glorot; "
            "a model's --init-range or --init holds (default: uniform)"
        },
    )


@dataclass
class LabelNetworkOptions(LabelLayerOptions):
    """A deep residual label network."""

    label_depth: int = field(default=2, metadata={"help": "layers of the label network (default: 2)"})
    label_residual: OnOff = field(
        default="on", metadata={"help": "whether every layer adds the label embedding (default: on)"}
    )
    label_layer_residual: OnOff = field(
        default="off",
        metadata={"help": "whether every layer from the second on adds its input as well (default: off)"},
    )
    label_dropout_place: DropoutPlace = field(
        default="input",
        metadata={
            "help": "whether each layer's input is dropped, as in the program published with DRILL, or its "
            "output, as in the paper (default: input)"
        },
    )


def label_dropout(options: LabelDropoutOptions) -> BroadcastDropout:
    """Dropout of labels (V, d) without a network."""
    shared_dims = SHARED_DIMS[options.label_mask]
    return BroadcastDropout(options.label_dropout, flag="--label-dropout", shared_dims=shared_dims)


def label_layer(in_width: int, out_width: int, options: LabelLayerOptions, *, dropout: float) -> LabelNetwork:
    """One layer without residuals."""
    return LabelNetwork(
        in_width,
        out_width,
        depth=1,
        residual=False,
        layer_residual=False,
        activation=options.label_activation,
        dropout=dropout,
        mask=options.label_mask,
        place="input",
        initialisation=options.label_init,
    )


def label_network(width: int, options: LabelNetworkOptions) -> LabelNetwork:
    """A network of ``--label-depth`` layers for labels (V, d).

    Raises:
        ValueError: on a negative depth or a rate outside [0, 1).
    """
    return _deep_network(width, options, mask=options.label_mask)


def hidden_network(width: int, options: LabelNetworkOptions) -> LabelNetwork:
    """A network of the same shape for hidden states (B, T, d).

    A variational mask is drawn for each batch row, as in the program published with DRILL, and where inputs are
    dropped, the first layer reads all features.
    """
    network = _deep_network(width, options, mask="row" if options.label_mask == "variational" else options.label_mask)
    if options.label_depth > 0 and options.label_dropout_place == "input":
        network.layers[0].dropout.rate = 0.0
    return network


def _deep_network(width: int, options: LabelNetworkOptions, *, mask: str) -> LabelNetwork:
    check_not_negative(options.label_depth, flag="--label-depth")
    check_dropout(options.label_dropout, flag="--label-dropout")
    return LabelNetwork(
        width,
        width,
        depth=options.label_depth,
        residual=options.label_residual == "on",
        layer_residual=options.label_layer_residual == "on",
        activation=options.label_activation,
        dropout=options.label_dropout,
        mask=mask,
        place=options.label_dropout_place,
        initialisation=options.label_init,
    )


# Softmax with a bilinear map between hidden states and labels.
#
# Shapes: V vocabulary, d embedding width, D_N width of the last layer.


@OUTPUT_LAYERS.register("bilinear")
class BilinearSoftmax(SoftmaxOutput):
    """P = softmax(E W h^N + b) with W (d, D_N)  (Gulordava, Aina & Boleda 2018).

    The hidden states are multiplied by W rather than the labels, which are more.
    """

    Options = LabelDropoutOptions

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: LabelDropoutOptions,
    ):
        super().__init__(options)
        width = layer_widths[0]
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_dropout(options),
        )
        self.bilinear = Linear(layer_widths[-1], width, bias=False)
        nn.init.uniform_(self.bilinear.weight, -0.1, 0.1)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        return self.bilinear(hidden)


# Softmax in a joint space of hidden states and labels.
#
# Shapes: V vocabulary, d embedding width, D_N width of the last layer, d_j width of the joint space.


@dataclass
class DualOptions(LabelLayerOptions):
    """Flags of the dual layer."""

    label_width: Optional[int] = field(
        default=None, metadata={"help": "width of the joint space (default: that of the embedding)"}
    )


@OUTPUT_LAYERS.register("dual")
class DualSoftmax(SoftmaxOutput):
    """P = softmax(act(E U + b_u) act(V h^N + b_v) + b)  (Pappas, Miculicich & Henderson 2018; 2019, eq. 5).

    Raises:
        ValueError: on a width that is not positive.
    """

    Options = DualOptions

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: DualOptions,
    ):
        super().__init__(options)
        width = layer_widths[0]
        joint_width = width if options.label_width is None else options.label_width
        check_positive(joint_width, flag="--label-width")
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_layer(width, joint_width, options, dropout=options.label_dropout),
        )
        self.hidden_encoder = label_layer(layer_widths[-1], joint_width, options, dropout=0.0)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        return self.hidden_encoder(hidden)


# Softmax whose labels are encoded by a deep residual network.
#
# Shapes: V vocabulary, d embedding width, which the last layer must have, too.


@dataclass
class DrillOptions(LabelNetworkOptions):
    """Flags of DRILL."""

    label_hidden_network: OnOff = field(
        default="off",
        metadata={
            "help": "whether the hidden states pass a network of the same shape with weights of its own; "
            "with --label-dropout-place input its first layer reads all features (default: off, as published)"
        },
    )


@OUTPUT_LAYERS.register("drill")
class Drill(SoftmaxOutput):
    """Deep residual output layer: P = softmax(E^(k) h^N + b), E^(i) = act(drop(E^(i-1)) U^(i) + b^(i)) + E.

    Pappas & Henderson 2019, eq. 8 to 10; eq. 12 drops a layer's output, the published program its input, as here by
    default. With k = ``--label-depth`` 0 it is the tied softmax. The residual always adds the embedding that was not
    dropped.

    Raises:
        ValueError: if the last layer is not as wide as the embedding.
    """

    Options = DrillOptions

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: DrillOptions,
    ):
        super().__init__(options)
        width = layer_widths[0]
        if layer_widths[-1] != width:
            raise ValueError(
                f"--output-layer drill compares hidden states, {layer_widths[-1]} wide, with word embeddings, {width} "
                f"wide: {MAKE_WIDTHS_EQUAL}"
            )
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_network(width, options),
        )
        self.hidden_encoder: Optional[LabelNetwork] = None
        if options.label_hidden_network == "on":
            self.hidden_encoder = hidden_network(width, options)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        if self.hidden_encoder is None:
            return hidden
        return self.hidden_encoder(hidden)
