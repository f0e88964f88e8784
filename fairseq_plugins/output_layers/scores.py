"""What an output layer says of the next words.

Shapes: B batch, T time, J experts, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import List, Literal, Optional

from torch import Tensor

from fairseq_plugins.modules.cell import State


@dataclass
class Scores:
    """What an output layer returns: a distribution, or the loss of given targets.

    Attributes:
        log_probs: log P(v) of every word, (B, T, V), normalised, in float32 or wider; None where targets were given.
        loss: to minimise, a scalar in nats, summed with the weights of the tokens; None without targets.
        nll: -log P(target) of every token, (B, T), without smoothing, weight and gradient, and 0 where the weight is 0;
            None without targets, and for a loss of targets against noise.
        mixture_weights: prior pi of the softmaxes of a mixture, (B, T, J), or None.
        gate_state: state of the gate after the last token, empty for a gate without.
    """

    log_probs: Optional[Tensor] = None
    loss: Optional[Tensor] = None
    nll: Optional[Tensor] = None
    mixture_weights: Optional[Tensor] = None
    gate_state: State = field(default_factory=dict)

    @property
    def output(self) -> Tensor:
        """What a decoder returns to fairseq: the loss where targets were given, or else the log-probabilities."""
        output = self.log_probs if self.loss is None else self.loss
        assert output is not None
        return output


# What decoders hand to output layers.
#
# Shapes: B batch, T time, S source positions, D_n width of layer n (D_0: embedding), N index of the last layer.


@dataclass
class DecoderStates:
    """What any decoder hands to any output layer.

    Attributes:
        layers: h^0 .. h^N, each (B, T, D_n) after its dropout; h^0 is the input embedding. Of a Transformer those below
            h^N are what its layers pass on, which is not normalised with ``--decoder-normalize-before``. With
            ``--output-skip sum`` h^N is the sum of the outputs of all recurrent layers.
        top: h^N before its dropout, (B, T, D_N); of a Transformer, whose last layer has none, h^N.
        tokens: the input tokens, (B, T).
        attention: attention weights over the source, (B, T, S), or None.
        source: the source tokens, (B, S), or None.
        incremental: whether these are of a step of a search, as beam search takes it.
    """

    layers: List[Tensor]
    top: Tensor
    tokens: Tensor
    attention: Optional[Tensor] = None
    source: Optional[Tensor] = None
    incremental: bool = False


# Noise words that a training tells the targets from, in place of all other words.
#
# Shapes: B batch, T time, K noise words.


Gradients = Literal["sparse", "dense"]
"""Whether the gradient of a matrix of all words holds the rows that were read alone, or all rows."""

Hits = Literal["left-out", "counted"]
"""What becomes of a noise word that is the target by accident."""


@dataclass
class Noise:
    """What a criterion draws for a batch.

    An offset is log Z + log(k q(w)): the logit at which a word is as likely the target as noise, with the normaliser
    Z and the expected number k q(w) of draws of the word.

    Attributes:
        words: (K), the same for all tokens, or (B, T, K).
        offsets: of the words, in their shape.
        target_offsets: of the targets, (B, T).
        gradients: of the label embedding.
        hits: of the words.
    """

    words: Tensor
    offsets: Tensor
    target_offsets: Tensor
    gradients: Gradients
    hits: Hits = "left-out"
