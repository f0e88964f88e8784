"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998, section 3).

Shapes: V words of the dictionary, K the highest order, N_k n-grams of order k, C_k contexts of order k.
"""

from dataclasses import dataclass
from typing import List, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.ngrams.discounts import Discounts, estimate_discounts
from fairseq_plugins.ngrams.ngram_counts import NGramCounts, count_ngrams
from fairseq_plugins.ngrams.ngram_model import NGramModel


@dataclass(frozen=True)
class Estimate:
    """A model and how it was made.

    Attributes:
        model: the model.
        discounts: for each order.
        num_words: words that the model predicts: those of ``dict.txt``, the unknown word and the end mark.
    """

    model: NGramModel
    discounts: List[Discounts]
    num_words: int


def estimate_model(stream: Tensor, dictionary: Dictionary, *, order: int, show_progress: bool = False) -> Estimate:
    """Estimate a model from a text.

    Unigrams are interpolated with the uniform distribution over the words that the model predicts. The sentence start
    and the padding of the dictionary are none of them.

    Args:
        stream, dictionary, order, show_progress: see :func:`~fairseq_plugins.ngrams.ngram_counts.count_ngrams`.

    Raises:
        ValueError: see :func:`~fairseq_plugins.ngrams.ngram_counts.count_ngrams`.
    """
    counts = count_ngrams(stream, dictionary, order=order, show_progress=show_progress)
    never_predicted = torch.tensor([dictionary.bos(), dictionary.pad()])
    num_words = len(dictionary) - len(never_predicted)
    probs = torch.full((1,), 1 / num_words, dtype=torch.float64)  # of the order below, which is uniform at first
    discounts: List[Discounts] = []
    log_probs: List[Tensor] = []
    log_backoffs: List[Tensor] = []
    for n in tqdm(range(1, order + 1), desc="smoothing", unit="order", disable=not show_progress):
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

    With adjusted counts a and their discounts D(a), P(w|c) = (a(cw) - D(a(cw))) / a(c) + weight(c) P(w|suffix of c);
    a(c) is the sum of a(cw) over w, and weight(c) that of D(a(cw)) divided by a(c). A context that nothing follows has
    weight one.
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
