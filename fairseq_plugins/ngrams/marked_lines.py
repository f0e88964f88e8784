"""A stream of lines with a sentence start before each line, which n-grams do not cross.

Shapes: n tokens, L lines.
"""

from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from torch import Tensor


@dataclass(frozen=True)
class MarkedLines:
    """Lines of a stream, each with a sentence start before it.

    Attributes:
        words: (n + L,) int64, the sentence starts included.
        places: (n,) where in ``words`` the tokens of the stream are.
    """

    words: Tensor
    places: Tensor


def mark_lines(stream: Tensor, dictionary: Dictionary) -> MarkedLines:
    """Put a sentence start before each line.

    A line starts at the start of the stream and after each end mark.

    Args:
        stream: (n,) int64.
        dictionary: names the two marks.
    """
    starts = torch.ones_like(stream)
    starts[1:] = stream[:-1] == dictionary.eos()
    places = torch.arange(len(stream), device=stream.device) + starts.cumsum(0)
    words = stream.new_full((len(stream) + int(starts.sum()),), dictionary.bos())
    words[places] = stream
    return MarkedLines(words=words, places=places)
