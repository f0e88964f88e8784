"""Counts of n-grams against counters of tuples."""

import pytest
import torch
from plain_kneser_ney import PlainKneserNey
from small_texts_of_ngrams import random_lines, stream_of, vocabulary_of

from fairseq_plugins.ngrams.ngram_counts import count_ngrams

V = 24
K = 4


@pytest.fixture
def dictionary(make_dictionary):
    return make_dictionary(V)


@pytest.fixture
def lines():
    return random_lines(num_words=20)


def by_words(counts, values, order, dictionary):
    """Counts that are not zero, by the words of the n-gram."""
    words = counts.index.words(order, torch.arange(counts.index.num_ngrams(order)))
    named = [tuple(dictionary[word] for word in row) for row in words.tolist()]
    assert len(set(named)) == len(named)
    return {name: value for name, value in zip(named, values.tolist()) if value}


def test_occurrences_and_adjusted_counts(lines, dictionary):
    counts = count_ngrams(stream_of(lines, dictionary), dictionary, order=K)
    plain = PlainKneserNey(lines, order=K, vocabulary=vocabulary_of(dictionary))
    for k in range(1, K + 1):
        assert by_words(counts, counts.occurrences[k - 1], k, dictionary) == dict(plain.counts[k])
        assert by_words(counts, counts.adjusted(k), k, dictionary) == dict(plain.adjusted[k])


def test_adjusted_counts_of_unigrams_leave_the_occurrences_as_they_are(lines, dictionary):
    counts = count_ngrams(stream_of(lines, dictionary), dictionary, order=1)
    assert counts.adjusted(1)[dictionary.bos()] == 0
    assert counts.occurrences[0][dictionary.bos()] == len(lines)


def test_suffixes_are_the_ngrams_without_their_first_words(lines, dictionary):
    counts = count_ngrams(stream_of(lines, dictionary), dictionary, order=K)
    for k in range(2, K + 1):
        words = counts.index.words(k, torch.arange(counts.index.num_ngrams(k)))
        assert torch.equal(counts.index.words(k - 1, counts.suffixes[k - 1]), words[:, 1:])


def test_the_last_line_may_lack_its_end(dictionary):
    counts = count_ngrams(stream_of([["w1", "w2"]], dictionary)[:-1], dictionary, order=3)
    assert by_words(counts, counts.occurrences[2], 3, dictionary) == {("<s>", "w1", "w2"): 1}


@pytest.mark.parametrize("order", [0, -1])
def test_an_order_below_one_is_refused(order, lines, dictionary):
    with pytest.raises(ValueError, match=f"order {order}: give at least 1"):
        count_ngrams(stream_of(lines, dictionary), dictionary, order=order)


def test_an_order_above_the_longest_line_is_refused(dictionary):
    stream = stream_of([["w1"], ["w2", "w3"], []], dictionary)
    assert count_ngrams(stream, dictionary, order=4).index.num_ngrams(4) == 1
    with pytest.raises(
        ValueError, match="order 6: the longest line has 4 words, both its marks included: give at most"
    ):
        count_ngrams(stream, dictionary, order=6)


def test_an_empty_text_is_refused(dictionary):
    with pytest.raises(ValueError, match="the text is empty"):
        count_ngrams(torch.zeros(0, dtype=torch.int64), dictionary, order=2)


@pytest.mark.parametrize("symbol", ["<s>", "<pad>"])
def test_what_stands_for_no_word_is_refused(symbol, dictionary):
    with pytest.raises(ValueError, match=f"the text holds {symbol}, which stands for no word"):
        count_ngrams(stream_of([["w1", symbol]], dictionary), dictionary, order=2)
