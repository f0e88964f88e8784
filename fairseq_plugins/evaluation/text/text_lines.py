"""Lines of text in the numbers of a model's vocabulary."""

from dataclasses import dataclass
from typing import List, Sequence

from fairseq.data import Dictionary
from torch import Tensor
from tqdm import tqdm


@dataclass(frozen=True)
class EncodedLines:
    """Lines as sequences of tokens.

    Attributes:
        sequences: one a line, (n,) int64, the end mark at the end; a blank line has nothing else.
        num_unknown: tokens that are the unknown word, for which every word stands that the vocabulary lacks.
    """

    sequences: List[Tensor]
    num_unknown: int


def encode_lines(lines: Sequence[str], dictionary: Dictionary, *, show_progress: bool = False) -> EncodedLines:
    """Split lines at white space, as ``fairseq-preprocess`` does, and number their words.

    Args:
        lines: tokenised as the model's training text was.
        dictionary: of the model, ``model.decoder.dictionary``; it does not grow.
        show_progress: draw a bar.
    """
    sequences = [
        dictionary.encode_line(line, add_if_not_exist=False).long()
        for line in tqdm(lines, desc="encoding", unit="line", disable=not show_progress)
    ]
    num_unknown = sum(int(sequence.eq(dictionary.unk()).sum()) for sequence in sequences)
    return EncodedLines(sequences=sequences, num_unknown=num_unknown)
