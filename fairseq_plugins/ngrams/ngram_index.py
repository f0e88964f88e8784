"""The numbers of n-grams.

Shapes: m words of a marked stream, V words of the dictionary, K the highest order, N_k n-grams of order k.
"""

from typing import List

import torch
from torch import Tensor

ABSENT = -1
"""The number of an n-gram that is not in the index, and the key of one that could not be."""


class NGramIndex:
    """Numbers the n-grams of the orders 1 to K.

    The number of a unigram is that of its word in the dictionary. The key of a longer n-gram is V times the number of
    its context, which is the n-gram without its last word, plus the last word. Its number is the place of its key
    among the keys of its order. So the n-grams of one context follow each other, and every context is an n-gram.

    Args:
        vocab_size: V.
        sentence_start: the word that stands before each line. It ends no n-gram but its unigram.
    """

    def __init__(self, *, vocab_size: int, sentence_start: int) -> None:
        self.vocab_size = vocab_size
        self.sentence_start = sentence_start
        self._keys = [torch.arange(vocab_size)]

    @property
    def order(self) -> int:
        """K."""
        return len(self._keys)

    def num_ngrams(self, order: int) -> int:
        """N_k."""
        return len(self._keys[order - 1])

    def append_order(self, keys: Tensor) -> None:
        """Add the n-grams of the next order.

        Args:
            keys: (N_k,) int64, ascending, none twice.
        """
        self._keys.append(keys)

    def contexts(self, order: int) -> Tensor:
        """The number of the context of each n-gram, (N_k,); zero for unigrams, whose context is empty."""
        return self._keys[order - 1] // self.vocab_size

    def last_words(self, order: int) -> Tensor:
        """The last word of each n-gram, (N_k,)."""
        return self._keys[order - 1] % self.vocab_size

    def words(self, order: int, numbers: Tensor) -> Tensor:
        """All words of n-grams, (n, k).

        Args:
            numbers: (n,) of n-grams of this order.
        """
        columns = []
        for keys in reversed(self._keys[:order]):
            columns.append(keys[numbers] % self.vocab_size)
            numbers = keys[numbers] // self.vocab_size
        return torch.stack(columns[::-1], dim=1)

    def keys(self, contexts: Tensor, last_words: Tensor) -> Tensor:
        """Keys of n-grams, (n,); ABSENT where the context is.

        Args:
            contexts: (n,) numbers of n-grams, or ABSENT.
            last_words: (n,).
        """
        return torch.where(contexts == ABSENT, ABSENT, contexts * self.vocab_size + last_words)

    def keys_of(self, words: Tensor) -> Tensor:
        """Keys of n-grams, (n,); ABSENT where the index lacks the context.

        Args:
            words: (n, k), of an order that the index has, or of the next.
        """
        numbers = words.new_zeros(len(words))  # of the empty context
        for order in range(1, words.shape[1]):
            numbers = self.find(order, self.keys(numbers, words[:, order - 1]))
        return self.keys(numbers, words[:, -1])

    def find(self, order: int, keys: Tensor) -> Tensor:
        """Numbers of n-grams, (n,); ABSENT where the index lacks them.

        Args:
            keys: (n,) of this order.
        """
        known = self._keys[order - 1]
        if not len(known):
            return torch.full_like(keys, ABSENT)
        places = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        return torch.where(known[places] == keys, places, ABSENT)

    def keys_in(self, words: Tensor, shorter: Tensor) -> Tensor:
        """The key of the n-gram that ends at each place of a marked stream, (m,).

        ABSENT where the line has too few words before, or where the index lacks the context.

        Args:
            words: (m,) a marked stream.
            shorter: (m,) the number of the n-gram of the order below that ends at each place.
        """
        keys = self.keys(contexts_in(shorter), words)
        return torch.where(words == self.sentence_start, ABSENT, keys)

    def numbers_in(self, words: Tensor) -> List[Tensor]:
        """The number of the n-gram that ends at each place of a marked stream, (m,) for each order.

        Args:
            words: (m,) a marked stream.
        """
        numbers = [words]
        for order in range(2, self.order + 1):
            numbers.append(self.find(order, self.keys_in(words, numbers[-1])))
        return numbers


def contexts_in(shorter: Tensor) -> Tensor:
    """The number of the context before each place of a stream, (m,), ABSENT before the first.

    Args:
        shorter: (m,) the number of the n-gram that ends at each place.
    """
    return torch.cat([shorter.new_full((1,), ABSENT), shorter[:-1]])[: len(shorter)]
