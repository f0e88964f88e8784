"""The attention of a translation between whole words."""

from dataclasses import dataclass
from typing import List, Sequence

import torch
from sacremoses import MosesDetokenizer
from torch import Tensor

from fairseq_plugins.evaluation.text.subwords import Subwords
from fairseq_plugins.evaluation.translation.translator import TranslatedSentence

END = "</s>"


@dataclass(frozen=True, eq=False)
class WordAttention:
    """Which words of the source were read for which word of the translation.

    Attributes:
        weights: (T, S) float32; a row is a distribution over the words of the source.
        source: S words, the end mark the last.
        target: T words, the end mark the last.
    """

    weights: Tensor
    source: List[str]
    target: List[str]


def word_attention(sentence: TranslatedSentence, subwords: Subwords) -> WordAttention:
    """Join the attention between pieces: a sum over the pieces of a source word, a mean over those of a target word.

    Raises:
        ValueError: if the sentence has no attention.
    """
    if sentence.attention is None:
        raise ValueError("the model has no attention: there is none to draw")
    source, target = ([*subwords.group(pieces), [END]] for pieces in (sentence.source, sentence.target))
    per_target = [rows.mean(0) for rows in sentence.attention.split([len(word) for word in target])]
    per_word = [columns.sum(1) for columns in torch.stack(per_target).split([len(word) for word in source], dim=1)]
    return WordAttention(torch.stack(per_word, dim=1), _readable(source), _readable(target))


def _readable(words: Sequence[Sequence[str]]) -> List[str]:
    return [MosesDetokenizer().unescape_xml("".join(word)) for word in words]
