"""How often the n-grams of a text occur.

Shapes: n tokens, V words of the dictionary, K the highest order, N_k n-grams of order k.
"""

from dataclasses import dataclass
from typing import List

import torch
from fairseq.data import Dictionary
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.ngrams.marked_lines import mark_lines
from fairseq_plugins.ngrams.ngram_index import ABSENT, NGramIndex


@dataclass(frozen=True)
class NGramCounts:
    """The n-grams of a text, sentence starts and end marks included.

    Attributes:
        index: numbers the n-grams.
        occurrences: for each order, how often each n-gram occurs, (N_k,) int64.
        suffixes: for each order, the number of each n-gram without its first word, (N_k,); zero for unigrams.
    """

    index: NGramIndex
    occurrences: List[Tensor]
    suffixes: List[Tensor]

    def adjusted(self, order: int) -> Tensor:
        """The counts that Kneser-Ney smoothing reads, (N_k,) int64.

        An n-gram of the highest order has its occurrences. A shorter one has the number of different words that occur
        before it. Nothing occurs before a sentence start; an n-gram that begins with it keeps its occurrences. The
        sentence start itself has zero, for it is never predicted.
        """
        occurrences = self.occurrences[order - 1]
        if order < self.index.order:
            continuations = torch.bincount(self.suffixes[order], minlength=len(occurrences))
            occurrences = torch.where(continuations > 0, continuations, occurrences)
        if order == 1:
            occurrences = occurrences.clone()
            occurrences[self.index.sentence_start] = 0
        return occurrences


def count_ngrams(stream: Tensor, dictionary: Dictionary, *, order: int, show_progress: bool = False) -> NGramCounts:
    """Count the n-grams of a text, line by line.

    Args:
        stream: (n,) int64, an end mark after each line.
        dictionary: its unknown word is an ordinary one. Its sentence start and padding are no words of a text.
        order: K.
        show_progress: draw a bar.

    Raises:
        ValueError: if K is below one or above the longest line, or if the text is empty or holds a sentence start or
            padding.
    """
    if order < 1:
        raise ValueError(f"order {order}: give at least 1")
    if not len(stream):
        raise ValueError("the text is empty: n-grams are counted in at least one line")
    for symbol in (dictionary.bos(), dictionary.pad()):
        if bool((stream == symbol).any()):
            raise ValueError(f"the text holds {dictionary[symbol]}, which stands for no word: take it out")
    words = mark_lines(stream, dictionary).words
    index = NGramIndex(vocab_size=len(dictionary), sentence_start=dictionary.bos())
    numbers = words
    occurrences = [torch.bincount(words, minlength=len(dictionary))]
    suffixes = [torch.zeros(len(dictionary), dtype=torch.int64)]
    for longer in tqdm(range(2, order + 1), desc="counting", unit="order", disable=not show_progress):
        keys = index.keys_in(words, numbers)
        whole = keys != ABSENT
        if not bool(whole.any()):
            raise ValueError(
                f"order {order}: the longest line has {longer - 1} words, both its marks included: give at most that"
            )
        found, inverse, counted = torch.unique(keys[whole], return_inverse=True, return_counts=True)
        index.append_order(found)
        occurrences.append(counted)
        suffixes.append(torch.empty_like(found).index_copy_(0, inverse, numbers[whole]))
        numbers = torch.full_like(keys, ABSENT)
        numbers[whole] = inverse
    return NGramCounts(index=index, occurrences=occurrences, suffixes=suffixes)
