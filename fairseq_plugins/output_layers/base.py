"""The contract between decoders and output layers, and the registry of output layers.

Shapes: B batch, T time, D_n width of layer n (D_0: embedding), N index of the last layer, V vocabulary,
J experts.
"""

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence

from torch import Tensor, nn

from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.modules.saved_setting import SavesSettings


@dataclass
class DecoderStates:
    """What any decoder hands to any output layer.

    Attributes:
        layers: h^0 .. h^N, each (B, T, D_n) after its dropout; h^0 is the input embedding.
        top: h^N before its dropout, (B, T, D_N).
        tokens: the input tokens, (B, T).
        attention: attention weights over the source, (B, T, S), or None.
    """

    layers: List[Tensor]
    top: Tensor
    tokens: Tensor
    attention: Optional[Tensor] = None


@dataclass
class Scores:
    """What an output layer returns: a distribution, or the loss of given targets.

    Attributes:
        log_probs: log P(v) of every word, (B, T, V), normalised, in float32 or wider; None where targets were given.
        loss: to minimise, a scalar in nats, summed with the weights of the tokens; None without targets.
        nll: -log P(target) of every token, (B, T), without smoothing, weight and gradient, and 0 where the weight is 0;
            None without targets, and where the loss is formed without it.
        mixture_weights: prior pi of the softmaxes of a mixture, (B, T, J), or None.
    """

    log_probs: Optional[Tensor] = None
    loss: Optional[Tensor] = None
    nll: Optional[Tensor] = None
    mixture_weights: Optional[Tensor] = None

    @property
    def output(self) -> Tensor:
        """What a decoder returns to the host: the loss where targets were given, or else the log-probabilities."""
        return self.log_probs if self.loss is None else self.loss


class OutputLayer(Component, SavesSettings):
    """Turns decoder states into a distribution over the vocabulary.

    A subclass registers itself with ``OUTPUT_LAYERS.register``, names its flags in the dataclass
    ``Options`` and implements :meth:`log_probs`; it then is a value of ``--output-layer``. A layer
    that can score targets without building (B, T, V) overrides :meth:`target_loss`.

    :func:`build_output_layer` calls the constructor with keywords: ``vocab_size`` V, ``layer_widths``
    D_0 .. D_N, ``shared_weight``, the (V, D_0) input embedding where the model shares it or else None, and
    ``options``, an instance of ``Options``.
    """

    def __init__(self):
        super().__init__()
        self.save_setting("layer_name", flag=OUTPUT_LAYERS.flag, value=self.name)

    def log_probs(self, states: DecoderStates) -> Scores:
        """The distribution at every position."""
        raise NotImplementedError

    def target_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        *,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
    ) -> Scores:
        """Loss of given targets; see :meth:`forward`."""
        scores = self.log_probs(states)
        log_probs = scores.log_probs
        ignored = None if token_weights is None else token_weights == 0
        if ignored is not None:
            target = target.masked_fill(ignored, 0)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        loss = nll
        if label_smoothing > 0:
            loss = (1 - label_smoothing) * nll - label_smoothing * log_probs.mean(dim=-1)
        if ignored is not None:
            loss = loss.masked_fill(ignored, 0) * token_weights.detach()
            nll = nll.masked_fill(ignored, 0)
        return replace(scores, log_probs=None, loss=loss.sum(), nll=nll.detach())

    def forward(
        self,
        states: DecoderStates,
        target: Optional[Tensor] = None,
        *,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
    ) -> Scores:
        """The distribution at every position, or with ``target`` (B, T) the loss.

        The loss of a token is (1 - e) NLL + e mean_v(-log P(v)) with e = ``label_smoothing``; the losses are
        summed with ``token_weights`` (B, T), by default one, 0 at padding.
        """
        if target is None:
            return self.log_probs(states)
        return self.target_loss(states, target, token_weights=token_weights, label_smoothing=label_smoothing)


OUTPUT_LAYERS: Registry[OutputLayer] = Registry("--output-layer", help="how states become probabilities")
"""Values of ``--output-layer``."""


def build_output_layer(
    args: Namespace,
    *,
    vocab_size: int,
    layer_widths: Sequence[int],
    shared_weight: Optional[nn.Parameter],
) -> OutputLayer:
    """Build the layer that ``args.output_layer`` names; flags that are absent take their defaults.

    Raises:
        ValueError: if the layer does not exist, an option does not fit the model or belongs to other layers.
    """
    options = OUTPUT_LAYERS.read_options(args)
    return OUTPUT_LAYERS[args.output_layer](
        vocab_size=vocab_size, layer_widths=layer_widths, shared_weight=shared_weight, options=options
    )
