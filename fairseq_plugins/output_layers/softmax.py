"""One softmax over the vocabulary.

Shapes: B batch, T time, D_N width of the last layer, C width of the labels, V vocabulary.
"""

from typing import Optional, Sequence, Tuple

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.noise_contrast import noise_contrast
from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, Sharing
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.noise import Noise
from fairseq_plugins.output_layers.noise_log_odds import noise_log_odds
from fairseq_plugins.output_layers.projected import ProjectedOptions, ProjectedOutput
from fairseq_plugins.output_layers.scores import Scores
from fairseq_plugins.output_layers.word_projection import WordProjection


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
