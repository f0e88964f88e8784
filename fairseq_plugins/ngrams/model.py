"""An n-gram language model in back-off form.

Shapes: n tokens of a stream, L lines, m = n + L words of a stream with sentence starts, V words of the dictionary, K
the highest order, N_k n-grams of order k.
"""

import math
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.ngrams.arpa import ArpaRows, read_orders, write_rows
from fairseq_plugins.options import UserError

ABSENT = -1
"""The number of an n-gram that the index lacks, and its key if the index lacks its context."""


class NGramIndex:
    """Numbers the n-grams of the orders 1 to K over V words.

    The number of a unigram is its word's number in the dictionary. The context of a longer n-gram is the n-gram without
    its last word. Its key is V times the number of its context plus its last word. Its number is the index of its key
    among the sorted keys of its order. So a lookup is a binary search for an int64, n-grams with the same context are
    adjacent, and every context is an n-gram itself. Except for its unigram, no n-gram ends with the sentence start.
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
        """Add the n-grams of the next order by their keys, (N_k,) int64, ascending, none twice."""
        self._keys.append(keys)

    def contexts(self, order: int) -> Tensor:
        """The number of the context of each n-gram, (N_k,); zero for unigrams, whose context is empty."""
        return self._keys[order - 1] // self.vocab_size

    def last_words(self, order: int) -> Tensor:
        """The last word of each n-gram, (N_k,)."""
        return self._keys[order - 1] % self.vocab_size

    def words(self, order: int, numbers: Tensor) -> Tensor:
        """All words of the n-grams (n,) of an order, (n, k)."""
        columns = []
        for keys in reversed(self._keys[:order]):
            columns.append(keys[numbers] % self.vocab_size)
            numbers = keys[numbers] // self.vocab_size
        return torch.stack(columns[::-1], dim=1)

    def keys(self, contexts: Tensor, last_words: Tensor) -> Tensor:
        """Keys of n-grams, (n,), by the numbers of their contexts and their last words. ABSENT contexts give ABSENT."""
        return torch.where(contexts == ABSENT, ABSENT, contexts * self.vocab_size + last_words)

    def keys_of(self, words: Tensor) -> Tensor:
        """Keys of n-grams, (n,), by their words (n, k), up to one order more; ABSENT if the index lacks the context."""
        numbers = words.new_zeros(len(words))  # of the empty context
        for order in range(1, words.shape[1]):
            numbers = self.find(order, self.keys(numbers, words[:, order - 1]))
        return self.keys(numbers, words[:, -1])

    def find(self, order: int, keys: Tensor) -> Tensor:
        """Numbers of n-grams, (n,), by their keys; ABSENT if the index lacks them."""
        known = self._keys[order - 1]
        if not len(known):
            return torch.full_like(keys, ABSENT)
        places = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        return torch.where(known[places] == keys, places, ABSENT)

    def keys_in(self, words: Tensor, shorter: Tensor) -> Tensor:
        """The key of the n-gram that ends at each position of a marked stream, (m,).

        ``shorter`` are the numbers of the n-grams of the order below, (m,). The key is ABSENT if the line has too few
        words before, or the index lacks the context.
        """
        keys = self.keys(contexts_in(shorter), words)
        return torch.where(words == self.sentence_start, ABSENT, keys)

    def numbers_in(self, words: Tensor) -> List[Tensor]:
        """The number of the n-gram that ends at each position of a marked stream, (m,) for each order."""
        numbers = [words]
        for order in range(2, self.order + 1):
            numbers.append(self.find(order, self.keys_in(words, numbers[-1])))
        return numbers


def contexts_in(shorter: Tensor) -> Tensor:
    """The number of the context before each position of a stream, (m,); ABSENT before the first.

    ``shorter`` are the numbers of the n-grams that end at each position, (m,).
    """
    return torch.cat([shorter.new_full((1,), ABSENT), shorter[:-1]])[: len(shorter)]


def mark_lines(stream: Tensor, dictionary: Dictionary) -> Tuple[Tensor, Tensor]:
    """Put a sentence start before each line of a stream (n,), at its start and after each end mark.

    Returns the words with the sentence starts, (m,) int64, and the places of the stream's tokens among them, (n,).
    """
    starts = torch.ones_like(stream)
    starts[1:] = stream[:-1] == dictionary.eos()
    places = torch.arange(len(stream), device=stream.device) + starts.cumsum(0)
    words = stream.new_full((len(stream) + int(starts.sum()),), dictionary.bos())
    words[places] = stream
    return words, places


PLACES_AT_ONCE = 2**20
"""Words that are looked up at a time, and n-grams that are written at a time."""

LOG_10 = math.log(10)

MAX_SUM = 1.05
"""Bound of sums of probabilities in a file, which rounds them."""

LARGEST_LOG = 600.0
"""Bound of logarithms before exp, which overflows above 709."""


class NGramModel:
    """An n-gram model over the words of a dictionary.

    The log-probability of a word after a context is the n-gram's, if the model has the n-gram of both. Otherwise it is
    the back-off weight of the context, zero if the model lacks the context, plus the log-probability of the word after
    the context without its first word. All logarithms are natural.

    Args:
        log_probs: for each order, (N_k,) float64.
        log_backoffs: for each order except the highest, (N_k,) float64.
        stand_ins: (V,) what each word is looked up as: itself (default) or the unknown word. Words that are looked
            up as the unknown word share its probability equally.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        index: NGramIndex,
        log_probs: Sequence[Tensor],
        log_backoffs: Sequence[Tensor],
        stand_ins: Optional[Tensor] = None,
    ) -> None:
        assert len(log_probs) == len(log_backoffs) + 1 == index.order
        self.dictionary = dictionary
        self.index = index
        # ABSENT, minus one, indexes the last element: a log-probability or back-off weight of zero
        self._log_probs = [torch.cat([one, one.new_zeros(1)]) for one in log_probs]
        self._log_backoffs = [torch.cat([one, one.new_zeros(1)]) for one in log_backoffs]
        self._stand_ins = torch.arange(len(dictionary)) if stand_ins is None else stand_ins
        self._log_share = math.log(int((self._stand_ins == dictionary.unk()).sum()))

    @property
    def order(self) -> int:
        """K."""
        return self.index.order

    def num_ngrams(self, order: int) -> int:
        """Number of n-grams of an order in a file of the model."""
        return len(self._listed(order))

    def _listed(self, order: int) -> Tensor:
        """The numbers of the n-grams in a file of the model."""
        if order > 1:
            return torch.arange(self.index.num_ngrams(order))
        listed = self._stand_ins == torch.arange(len(self._stand_ins))
        listed[self.dictionary.pad()] = False
        for longer in range(2, self.order + 1):
            listed[self.index.last_words(longer)] = True
        if self.order > 1:
            listed[self.index.contexts(2)] = True
        return listed.nonzero().squeeze(1)

    @torch.no_grad()
    def log_probs(self, stream: Tensor) -> Tensor:
        """The log-probability of each token of a stream given those before it in its line, (n,) float64, on its device.

        A line starts at the start of the stream and after each end mark. Its first word has a sentence start as its
        context. A sentence start or padding within the stream has -inf.
        """
        read = self._stand_ins[stream.cpu()]
        words, places = mark_lines(read, self.dictionary)
        begins = range(0, len(words), PLACES_AT_ONCE)
        pieces = [torch.zeros(0, dtype=torch.float64)]
        for begin in progress(begins, desc="looking up", unit="piece"):
            before = max(begin - (self.order - 1), 0)
            pieces.append(self._look_up(words[before : begin + PLACES_AT_ONCE])[begin - before :])
        log_probs = torch.cat(pieces)[places]
        log_probs[read == self.dictionary.unk()] -= self._log_share
        return log_probs.to(stream.device)

    def _look_up(self, words: Tensor) -> Tensor:
        """The log-probability of each word of a part of a marked stream, (m,)."""
        numbers = self.index.numbers_in(words)
        log_probs = self._log_probs[0][words]
        for longer, shorter, probs, backoffs in zip(numbers[1:], numbers, self._log_probs[1:], self._log_backoffs):
            log_probs = torch.where(longer == ABSENT, log_probs + backoffs[contexts_in(shorter)], probs[longer])
        return log_probs

    def write_arpa(self, path: Path) -> None:
        """Write an ARPA file, compressed if its name ends in ``.gz``.

        Words that are read as the unknown word are left out, and so is padding without n-grams. The sentence start is
        written for its back-off weight. Raises OSError if the file cannot be written.
        """
        orders = range(1, self.order + 1)
        write_rows(
            path,
            (self._rows(order, piece) for order in orders for piece in self._listed(order).split(PLACES_AT_ONCE)),
            symbols=self.dictionary.symbols,
            sizes=[self.num_ngrams(order) for order in orders],
        )

    def _rows(self, order: int, numbers: Tensor) -> ArpaRows:
        log_probs = self._log_probs[order - 1][numbers]
        return ArpaRows(
            words=self.index.words(order, numbers),
            log10_probs=log_probs / LOG_10,
            log10_backoffs=(
                self._log_backoffs[order - 1][numbers] / LOG_10 if order < self.order else torch.zeros_like(log_probs)
            ),
        )

    @classmethod
    def read_arpa(cls, path: Path, dictionary: Dictionary) -> "NGramModel":
        """Read an ARPA file, compressed by gzip or not.

        n-grams with words that the dictionary lacks are left out, because they are never looked up. Words of the
        dictionary that the file lacks are read as the unknown word, whose probability they share equally. This does not
        hold for padding and for entries of ``dict.txt`` with a count of zero. Without an unknown word in the file, all
        of them have probability zero. Raises UserError if the file is missing or damaged, has no word of the
        dictionary, or probabilities that sum to more than 1 after some context; the message names the line or the
        context.
        """
        index = NGramIndex(vocab_size=len(dictionary), sentence_start=dictionary.bos())
        log_probs: List[Tensor] = []
        log_backoffs: List[Tensor] = []
        known = torch.zeros(len(dictionary), dtype=torch.bool)
        for rows in read_orders(path, dictionary.symbols):
            if rows.order == 1:
                known[rows.words[:, 0]] = True
            keys, by_key = index.keys_of(rows.words).sort()
            _check_rows(rows.words[by_key], keys, known=known, path=path, symbols=dictionary.symbols)
            if rows.order > 1:
                index.append_order(keys)
            log_probs.append(rows.log10_probs[by_key] * LOG_10)
            log_backoffs.append(rows.log10_backoffs[by_key] * LOG_10)
        if not known[dictionary.eos()]:
            raise UserError(f"{path} lacks </s>: give a model of lines, which end with it")
        if not known[dictionary.nspecial :].any():
            raise UserError(f"{path} has no word of dict.txt: give a model of the same language")
        # the index numbers all words of the dictionary, also those that the file lacks
        log_probs[0] = torch.full((len(dictionary),), -torch.inf).double().masked_scatter(known, log_probs[0])
        log_probs[0][[dictionary.bos(), dictionary.pad()]] = -torch.inf
        log_backoffs[0] = torch.zeros(len(dictionary)).double().masked_scatter(known, log_backoffs[0])
        model = cls(
            dictionary,
            index=index,
            log_probs=log_probs,
            log_backoffs=log_backoffs[:-1],
            stand_ins=_stand_ins(dictionary, known),
        )
        model._check_sums(path)
        return model

    def _check_sums(self, path: Path) -> None:
        """Check that probabilities sum to at most :data:`MAX_SUM`.

        Let L be the words that a context c lists, b its back-off weight, and c' the context without its first word. The
        sum of P(w | c) over all words is sum_L P(w | c) + b (sum_V P(w | c') - sum_L P(w | c')), because all words but
        L back off. So the sums of an order follow from the sums of the order below.
        """
        totals = [self._log_probs[0][:-1].exp().sum().view(1)]
        if totals[0] > MAX_SUM:
            raise UserError(
                f"{path} is damaged: the probabilities of its single words sum to {float(totals[0]):.4g}, not to 1"
            )
        for order in range(1, self.order):
            weights = self._log_backoffs[order - 1][:-1].clamp(max=LARGEST_LOG).exp()
            total = torch.zeros_like(weights)
            for numbers in torch.arange(len(total)).split(PLACES_AT_ONCE):
                shorter = self.index.words(order, numbers)[:, 1:]
                total[numbers] = weights[numbers] * self._totals_after(shorter, totals)
            for numbers in torch.arange(self.index.num_ngrams(order + 1)).split(PLACES_AT_ONCE):
                contexts = self.index.contexts(order + 1)[numbers]
                lower = self._log_probs_of(self.index.words(order + 1, numbers)[:, 1:]).exp()
                total.index_add_(0, contexts, self._log_probs[order][numbers].exp() - weights[contexts] * lower)
            totals.append(total)
            if not len(total):  # if no trigram has only words of the dictionary, no longer n-gram has
                break
            worst = int(total.argmax())
            if total[worst] > MAX_SUM:
                words = self.index.words(order, torch.tensor([worst]))[0].tolist()
                context = " ".join(self.dictionary.symbols[word] for word in words)
                raise UserError(
                    f"{path} is damaged: after '{context}' the probabilities of all words sum to "
                    f"{float(total[worst]):.4g}, not to 1, with its back-off weight of "
                    f"{float(self._log_backoffs[order - 1][worst]) / LOG_10:.4g}: normalise the file or estimate the "
                    "model again"
                )

    def _totals_after(self, contexts: Tensor, totals: Sequence[Tensor]) -> Tensor:
        """Sums of the probabilities of all words after contexts (n, k), (n,). ``totals`` are by order of context."""
        num_words = contexts.shape[1]
        if num_words == 0:
            return totals[0].expand(len(contexts))
        numbers = self.index.find(num_words, self.index.keys_of(contexts))
        return torch.where(numbers == ABSENT, self._totals_after(contexts[:, 1:], totals), totals[num_words][numbers])

    def _log_probs_of(self, words: Tensor) -> Tensor:
        """The log-probability of the last word of each row (n, k) after the others, (n,)."""
        num_words = words.shape[1]
        if num_words == 1:
            return self._log_probs[0][words[:, 0]]
        contexts = words[:, :-1]
        found = self.index.find(num_words - 1, self.index.keys_of(contexts))
        numbers = self.index.find(num_words, self.index.keys(found, words[:, -1]))
        backed_off = self._log_backoffs[num_words - 2][found] + self._log_probs_of(words[:, 1:])
        return torch.where(numbers == ABSENT, backed_off, self._log_probs[num_words - 1][numbers])


def _check_rows(words: Tensor, keys: Tensor, *, known: Tensor, path: Path, symbols: Sequence[str]) -> None:
    """Check n-grams (N, k) of a file, of ascending keys (N,): contexts and words are known (V,), and none is twice."""
    alone = (keys == ABSENT) | ~known[words].all(dim=1)
    twice = torch.zeros_like(alone)
    twice[1:] = keys[1:] == keys[:-1]
    for wrong, reason in (
        (alone, "its words or its context are not among the orders below"),
        (twice, "it stands twice"),
    ):
        if bool(wrong.any()):
            text = " ".join(symbols[word] for word in words[wrong][0].tolist())
            raise UserError(f"{path} is damaged: {words.shape[1]}-gram '{text}': {reason}")


def _stand_ins(dictionary: Dictionary, known: Tensor) -> Tensor:
    """The word that each word of a dictionary is read as, (V,)."""
    numbers = torch.arange(len(dictionary))
    lacking = ~known & (torch.tensor(dictionary.count) > 0)
    lacking[[dictionary.bos(), dictionary.pad()]] = False
    return numbers.where(~lacking, dictionary.unk())
