"""What decoders hand to output layers.

Shapes: B batch, T time, S source positions, D_n width of layer n (D_0: embedding), N index of the last layer.
"""

from dataclasses import dataclass
from typing import List, Optional

from torch import Tensor


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
