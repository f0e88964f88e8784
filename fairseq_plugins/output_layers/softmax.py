"""Output layers of one softmax: full, tied, bilinear, dual and DRILL, and their noise-contrastive loss.

Shapes: B batch, T time, N tokens, K noise words, V vocabulary, D_N width of the last layer, d width of the embedding,
C width of the labels.
"""

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.modules.layers import BroadcastDropout, Linear
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.matmul import accumulation_dtype, linear
from fairseq_plugins.ops.noise_contrastive import chosen_logits, noise_contrast
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, TieEmbeddings
from fairseq_plugins.output_layers.labels import (
    SHARED_DIMS,
    LabelDropoutOptions,
    LabelLayerOptions,
    LabelNetworkOptions,
    label_layer,
    label_network,
)
from fairseq_plugins.output_layers.projected import MAKE_WIDTHS_EQUAL, ProjectedOptions, ProjectedOutput, WordProjection
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores


class SoftmaxOutput(ProjectedOutput):
    """P = softmax(L g(h^N) + b). g is the identity unless a subclass overrides :meth:`encode_hidden`.

    Args:
        width: of the label embedding.
        shared_weight: the label embedding, (V, width), or None for a matrix of the layer's own.
        label_encoder: maps the label embedding to L, (V, C). Without one L is the embedding.
    """

    def __init__(
        self,
        width: int,
        options: ProjectedOptions,
        *,
        dictionary: Dictionary,
        shared_weight: Optional[nn.Parameter],
        label_encoder: Optional[nn.Module] = None,
    ):
        super().__init__(options)
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            label_encoder=label_encoder,
            bias=options.output_bias,
        )

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        """g: (B, T, D_N) to (B, T, C)."""
        return hidden

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        hidden = self.encode_hidden(states.layers[-1]).unsqueeze(-2)
        return hidden, hidden.new_zeros(hidden.shape[:-1], dtype=accumulation_dtype(hidden))

    def noise_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        gate: Optional[LogitGate] = None,
        *,
        noise: Noise,
        token_weights: Optional[Tensor] = None,
    ) -> Scores:
        """Loss of telling the targets from noise words. Only the rows of L of these words are read.

        Raises:
            UserError: with a gate, a margin or an output layer in bfloat16.
        """
        if gate is not None:
            raise UserError(
                f"--criterion noise_contrastive has no gates: leave --output-gate {self.gate.name} out, or train with "
                "--criterion regularized_cross_entropy"
            )
        if self.adversarial_epsilon > 0:
            raise UserError(
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
    """Softmax with a matrix (V, D_N) of its own."""

    tie_embeddings = TieEmbeddings.NEVER

    def __init__(self, *, layer_widths: Sequence[int], options: ProjectedOptions, **parts: Any):
        assert (parts["shared_weight"] is None) == (self.tie_embeddings is TieEmbeddings.NEVER)
        super().__init__(layer_widths[-1], options, **parts)


@OUTPUT_LAYERS.register("tied")
class TiedSoftmax(FullSoftmax):
    """Softmax whose matrix is the input embedding (Inan et al. 2017; Press & Wolf 2017).

    Raises:
        UserError: if the last layer is not as wide as the embedding.
    """

    tie_embeddings = TieEmbeddings.ALWAYS


@OUTPUT_LAYERS.register("bilinear")
class BilinearSoftmax(SoftmaxOutput):
    """P = softmax(E W h^N + b) with W (d, D_N)  (Gulordava, Aina & Boleda 2018).

    W multiplies the hidden states, because there are fewer of them than labels.
    """

    Options = LabelDropoutOptions

    def __init__(self, *, layer_widths: Sequence[int], options: LabelDropoutOptions, **parts: Any):
        width, shared_dims = layer_widths[0], SHARED_DIMS[options.label_mask]
        dropout = BroadcastDropout(options.label_dropout, flag="--label-dropout", shared_dims=shared_dims)
        super().__init__(width, options, label_encoder=dropout, **parts)
        self.bilinear = Linear(layer_widths[-1], width, bias=False)
        nn.init.uniform_(self.bilinear.weight, -0.1, 0.1)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        return self.bilinear(hidden)


@dataclass
class DualOptions(LabelLayerOptions):
    """Flags of the dual layer."""

    label_width: Optional[int] = field(
        default=None, metadata={"help": "width of the joint space (default: that of the embedding)"}
    )


@OUTPUT_LAYERS.register("dual")
class DualSoftmax(SoftmaxOutput):
    """P = softmax(act(E U + b_u) act(V h^N + b_v) + b)  (Pappas, Miculicich & Henderson 2018; 2019, eq. 5).

    U and V map labels and hidden states into a joint space of C = ``--label-width`` features.

    Raises:
        UserError: on a width below one.
    """

    Options = DualOptions

    def __init__(self, *, layer_widths: Sequence[int], options: DualOptions, **parts: Any):
        width = layer_widths[0]
        joint_width = width if options.label_width is None else options.label_width
        check_at_least_one(joint_width, flag="--label-width")
        label_encoder = label_layer(width, joint_width, options, dropout=options.label_dropout)
        super().__init__(width, options, label_encoder=label_encoder, **parts)
        self.hidden_encoder = label_layer(layer_widths[-1], joint_width, options, dropout=0.0)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        return self.hidden_encoder(hidden)


@OUTPUT_LAYERS.register("drill")
class Drill(SoftmaxOutput):
    """Deep residual output layer: P = softmax(E^(k) h^N + b), E^(i) = act(drop(E^(i-1)) U^(i) + b^(i)) + E.

    Pappas & Henderson 2019, eq. 8 to 10. Dropout acts on a layer's input by default, as in the published program. Eq.
    12 drops its output. The residual E is never dropped. k is ``--label-depth``. With k = 0 this is the tied softmax.

    Raises:
        UserError: if the last layer is not as wide as the embedding.
    """

    Options = LabelNetworkOptions

    def __init__(self, *, layer_widths: Sequence[int], options: LabelNetworkOptions, **parts: Any):
        width = layer_widths[0]
        if layer_widths[-1] != width:
            raise UserError(
                f"--output-layer drill compares hidden states, {layer_widths[-1]} wide, with word embeddings, {width} "
                f"wide: {MAKE_WIDTHS_EQUAL}"
            )
        super().__init__(width, options, label_encoder=label_network(width, options), **parts)


def noise_log_odds(projection: WordProjection, hidden: Tensor, target: Tensor, noise: Noise) -> Tuple[Tensor, Tensor]:
    """Log-odds that a word is the target and not noise, of N targets and K noise words each: (N) and (N, K).

    They are the logits less the offsets of the noise, in float32 or wider. Each word that occurs is read once.

    Args:
        projection: of the logits.
        hidden: (N, C).
        target: (N).
        noise: of these tokens.
    """
    words, places = torch.unique(torch.cat([target, noise.words.flatten()]), return_inverse=True)
    labels, biases = projection.select(words, gradients=noise.gradients)
    dtype = accumulation_dtype(hidden)
    target_places, noise_places = places[: len(target)].unsqueeze(-1), places[len(target) :]
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, labels = hidden.to(dtype), labels.to(dtype)
        biases = None if biases is None else biases.to(dtype)

        def logits_at(chosen: Tensor) -> Tensor:
            logits = chosen_logits(hidden, labels, chosen)
            return logits if biases is None else logits + biases[chosen]

        if noise.words.dim() == 1:  # all tokens share their noise words: one matrix product
            target_logits = logits_at(target_places)
            noise_biases = None if biases is None else biases[noise_places]
            noise_logits = linear(hidden, labels.index_select(0, noise_places), noise_biases)
            offsets = noise.offsets
        else:
            logits = logits_at(torch.cat([target_places, noise_places.view(len(target), -1)], dim=1))
            target_logits, noise_logits = logits[:, :1], logits[:, 1:]
            offsets = noise.offsets.flatten(0, -2)
    target_offsets = noise.target_offsets.flatten()
    return target_logits.squeeze(-1) - target_offsets.to(dtype), noise_logits - offsets.to(dtype)
