"""Values that cross the boundary of an output layer: decoder states and noise words in, scores out.

Shapes: B batch, T time, S source positions, D_n width of layer n (D_0: embedding), N index of the last layer,
J experts, K noise words, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import List, Literal, Optional

from torch import Tensor

from fairseq_plugins.modules.cell import State


@dataclass
class Scores:
    """Output of an output layer: a distribution, or the loss of given targets.

    Attributes:
        log_probs: log P(v) of every word, (B, T, V), normalised, in float32 or wider. None if targets were given.
        loss: to minimise, a scalar in nats, summed with the weights of the tokens. None without targets.
        nll: -log P(target) of every token, (B, T), without smoothing, weight or gradient, and 0 where the weight is 0.
            None without targets, and for a noise-contrastive loss.
        mixture_weights: prior pi of the softmaxes of a mixture, (B, T, J), or None.
        gate_state: state of the gate after the last token, empty for a gate without state.
    """

    log_probs: Optional[Tensor] = None
    loss: Optional[Tensor] = None
    nll: Optional[Tensor] = None
    mixture_weights: Optional[Tensor] = None
    gate_state: State = field(default_factory=dict)

    @property
    def output(self) -> Tensor:
        """Output of a decoder for fairseq: the loss if targets were given, else the log-probabilities."""
        output = self.log_probs if self.loss is None else self.loss
        assert output is not None
        return output


@dataclass
class DecoderStates:
    """Output of any decoder, input of any output layer.

    Attributes:
        layers: h^0 .. h^N, each (B, T, D_n) after its dropout. h^0 is the input embedding. In a Transformer the layers
            below h^N are the residual stream, not normalised with ``--decoder-normalize-before``. With
            ``--output-skip sum`` the last recurrent layer's entry is the sum of the outputs of all recurrent layers.
        top: h^N before its dropout, (B, T, D_N). A Transformer has no dropout there, so top is h^N.
        tokens: the input tokens, (B, T).
        attention: attention weights over the source, (B, T, S), or None.
        source: the source tokens, (B, S), or None.
    """

    layers: List[Tensor]
    top: Tensor
    tokens: Tensor
    attention: Optional[Tensor] = None
    source: Optional[Tensor] = None


Gradients = Literal["sparse", "dense"]
"""Whether the gradient of the label embedding holds only the rows that were read, or all rows."""

Hits = Literal["left-out", "counted"]
"""Treatment of noise words that happen to be the target."""


@dataclass
class Noise:
    """Noise words that a criterion draws for a batch.

    An offset is log Z + log(k q(w)), with the normaliser Z and the expected number k q(w) of draws of the word w. At
    that logit a word is as likely the target as noise.

    Attributes:
        words: (K), the same for all tokens, or (B, T, K).
        offsets: of the words, in their shape.
        target_offsets: of the targets, (B, T).
        gradients: form of the gradient of the label embedding.
        hits: treatment of noise words that are the target.
    """

    words: Tensor
    offsets: Tensor
    target_offsets: Tensor
    gradients: Gradients
    hits: Hits = "left-out"
