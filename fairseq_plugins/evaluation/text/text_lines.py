"""Lines of text in the numbers of a model's vocabulary."""

from typing import List, Sequence

from fairseq.data import Dictionary
from torch import Tensor


def encode_lines(lines: Sequence[str], dictionary: Dictionary) -> List[Tensor]:
    """Split lines at white space, as ``fairseq-preprocess`` does, and number their words.

    Args:
        lines: tokenised as the model's training text was.
        dictionary: of the model, ``model.decoder.dictionary``; it does not grow.

    Returns:
        one a line, (n,) int64, the end mark at the end; a blank line has nothing else.
    """
    return [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
