"""Noise words that a training tells the targets from, in place of all other words.

Shapes: B batch, T time, K noise words.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

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
