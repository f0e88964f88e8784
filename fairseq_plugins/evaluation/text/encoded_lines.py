"""Lines of text as numbers of a vocabulary: raw ones with their pieces, and tokenised ones."""

from dataclasses import dataclass
from typing import List, Sequence

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.evaluation.text.raw_text import SideText


@dataclass(frozen=True)
class EncodedLine:
    """A line as models read it.

    Attributes:
        text: the line as it came.
        tokens: words or pieces of words, the last an end mark, n.
        numbers: of the tokens in the vocabulary, n.
    """

    text: str
    tokens: List[str]
    numbers: List[int]


class LineEncoder:
    """Makes numbers of lines.

    Args:
        text: how lines become tokens.
        dictionary: the vocabulary.
    """

    def __init__(self, text: SideText, dictionary: Dictionary):
        self.text = text
        self.dictionary = dictionary

    def encode(self, line: str) -> EncodedLine:
        """A line with its end mark."""
        pieces = self.text.split(line)
        numbers = [*self.numbers(pieces), self.dictionary.eos()]
        return EncodedLine(line, [*pieces, self.dictionary.eos_word], numbers)

    def numbers(self, pieces: Sequence[str]) -> List[int]:
        """Numbers of pieces, without an end mark."""
        return [self.dictionary.index(piece) for piece in pieces]


def encode_lines(lines: Sequence[str], dictionary: Dictionary) -> List[Tensor]:
    """Split lines at white space, as ``fairseq-preprocess`` does, and number their words.

    Args:
        lines: tokenised as the model's training text was.
        dictionary: of the model, ``model.decoder.dictionary``; it does not grow.

    Returns:
        one a line, (n,) int64, the end mark at the end; a blank line has nothing else.
    """
    return [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
