"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998, section 3): counts, discounts, estimation.

Shapes: n tokens, V words of the dictionary, K the highest order, N_k n-grams of order k, C_k contexts of order k.
"""

from dataclasses import dataclass
from typing import List, Literal, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.ngrams.model import ABSENT, NGramIndex, NGramModel, mark_lines
from fairseq_plugins.options import UserError

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of a text that is too small to estimate them."""


@dataclass(frozen=True)
class Discounts:
    """Discounts of one order for a count of one, of two, and of three or more.

    The source is "counts" if they were estimated, "fallback" if the counts do not define them.
    """

    values: Tuple[float, float, float]
    source: Literal["counts", "fallback"]

    def of(self, counts: Tensor) -> Tensor:
        """The discount of each count, float64 with the counts' shape; zero for a count of zero."""
        return torch.tensor([0.0, *self.values], dtype=torch.float64)[counts.clamp(max=3)]


def estimate_discounts(counts: Tensor) -> Discounts:
    """Discounts from the adjusted counts (N,) int64 of one order (Chen and Goodman 1998, equation 26).

    n_i is the number of n-grams with count i, Y = n_1 / (n_1 + 2 n_2) and D_i = i - (i + 1) Y n_(i+1) / n_i. If a D_i
    is undefined or not positive, all three are :data:`FALLBACK`.
    """
    one, two, three, four = torch.bincount(counts.clamp(max=5), minlength=6)[1:5].tolist()
    if not (one and two and three):
        return Discounts(FALLBACK, "fallback")
    base = one / (one + 2 * two)
    values = (1 - 2 * base * two / one, 2 - 3 * base * three / two, 3 - 4 * base * four / three)
    return Discounts(values, "counts") if min(values) > 0 else Discounts(FALLBACK, "fallback")


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

        An n-gram of the highest order keeps its occurrences. The count of a shorter one is the number of different
        words before it, because a lower order is used after unseen contexts: "Francisco" is frequent, but follows
        hardly any word except "San". An n-gram that begins with a sentence start keeps its occurrences, because nothing
        occurs before it. The sentence start itself has zero, because it is never predicted.
        """
        occurrences = self.occurrences[order - 1]
        if order < self.index.order:
            continuations = torch.bincount(self.suffixes[order], minlength=len(occurrences))
            occurrences = torch.where(continuations > 0, continuations, occurrences)
        if order == 1:
            occurrences = occurrences.clone()
            occurrences[self.index.sentence_start] = 0
        return occurrences


def count_ngrams(stream: Tensor, dictionary: Dictionary, *, order: int) -> NGramCounts:
    """Count the n-grams up to order K of a stream (n,) int64, line by line. An end mark follows each line.

    K is at least one, and the text not empty. The unknown word is an ordinary word. Raises UserError if K is above the
    longest line, or if the text holds a sentence start or padding.
    """
    for symbol in (dictionary.bos(), dictionary.pad()):
        if bool((stream == symbol).any()):
            raise UserError(f"the text holds {dictionary[symbol]}, which stands for no word: take it out")
    words, _ = mark_lines(stream, dictionary)
    index = NGramIndex(vocab_size=len(dictionary), sentence_start=dictionary.bos())
    numbers = words
    occurrences = [torch.bincount(words, minlength=len(dictionary))]
    suffixes = [torch.zeros(len(dictionary), dtype=torch.int64)]
    for longer in progress(range(2, order + 1), desc="counting", unit="order"):
        keys = index.keys_in(words, numbers)
        whole = keys != ABSENT
        if not bool(whole.any()):
            raise UserError(
                f"order {order}: the longest line has {longer - 1} words, both its marks included: give at most that"
            )
        found, inverse, counted = torch.unique(keys[whole], return_inverse=True, return_counts=True)
        index.append_order(found)
        occurrences.append(counted)
        suffixes.append(torch.empty_like(found).index_copy_(0, inverse, numbers[whole]))
        numbers = torch.full_like(keys, ABSENT)
        numbers[whole] = inverse
    return NGramCounts(index=index, occurrences=occurrences, suffixes=suffixes)


@dataclass(frozen=True)
class Estimate:
    """An estimated model, the discounts of each order, and the number of words that it predicts.

    These are the words of ``dict.txt``, the unknown word and the end mark.
    """

    model: NGramModel
    discounts: List[Discounts]
    num_words: int


def estimate_model(stream: Tensor, dictionary: Dictionary, *, order: int) -> Estimate:
    """Estimate a model from a text, as :func:`count_ngrams` reads it, with the same errors.

    Unigrams are interpolated with the uniform distribution over all words except the sentence start and the padding of
    the dictionary, which are never predicted.
    """
    counts = count_ngrams(stream, dictionary, order=order)
    never_predicted = torch.tensor([dictionary.bos(), dictionary.pad()])
    num_words = len(dictionary) - len(never_predicted)
    probs = torch.full((1,), 1 / num_words, dtype=torch.float64)  # of the order below, at first order 0
    discounts: List[Discounts] = []
    log_probs: List[Tensor] = []
    log_backoffs: List[Tensor] = []
    for n in progress(range(1, order + 1), desc="smoothing", unit="order"):
        adjusted = counts.adjusted(n)
        discounts.append(estimate_discounts(adjusted))
        probs, backoffs = _interpolate(counts, n, adjusted=adjusted, discounts=discounts[-1], shorter=probs)
        if n == 1:
            probs[never_predicted] = 0
        else:
            log_backoffs.append(backoffs.log())
        log_probs.append(probs.log())
    model = NGramModel(dictionary, index=counts.index, log_probs=log_probs, log_backoffs=log_backoffs)
    return Estimate(model=model, discounts=discounts, num_words=num_words)


def _interpolate(
    counts: NGramCounts, order: int, *, adjusted: Tensor, discounts: Discounts, shorter: Tensor
) -> Tuple[Tensor, Tensor]:
    """P of each n-gram, (N_k,), and the weight of the order below in each context, (C_k,); both float64.

    P(w|c) = (a(cw) - D(a(cw))) / a(c) + weight(c) P(w|suffix of c) with adjusted counts a and their discounts D(a).
    a(c) is the sum of a(cw) over w. weight(c) is the sum of D(a(cw)) over w, divided by a(c), so that P(.|c) sums to 1.
    A context that nothing follows has weight one.
    """
    index = counts.index
    contexts = index.contexts(order)
    num_contexts = index.num_ngrams(order - 1) if order > 1 else 1
    discount = discounts.of(adjusted)
    totals = torch.bincount(contexts, weights=adjusted.double(), minlength=num_contexts)
    freed = torch.bincount(contexts, weights=discount, minlength=num_contexts)
    weights = torch.where(totals > 0, freed / totals, 1.0)
    suffixes = counts.suffixes[order - 1]
    return (adjusted - discount) / totals[contexts] + weights[contexts] * shorter[suffixes], weights
