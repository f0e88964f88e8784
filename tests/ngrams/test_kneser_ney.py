"""Smoothing against dictionaries of counts, and the published perplexity of Penn Treebank."""

import math

import pytest
import torch
from builders import make_dictionary
from fairseq.data import Dictionary
from plain_kneser_ney import FALLBACK, PlainKneserNey
from real_corpora import corpus_folder
from small_texts_of_ngrams import random_lines, stream_of, vocabulary_of

from fairseq_plugins.ngrams.kneser_ney import FALLBACK as DISCOUNTS_FALLBACK
from fairseq_plugins.ngrams.kneser_ney import Discounts, estimate_discounts, estimate_model

V = 44
TEXTS = {
    "words of all counts": random_lines(num_words=40),
    "a word that never occurs": random_lines(num_words=V - 5),
    "unknown words": [["<unk>" if word == "w1" else word for word in line] for line in random_lines(num_words=40)],
    "too small": random_lines(num_words=6, num_lines=8, seed=3),
}


@pytest.mark.parametrize("name, order", [*zip(TEXTS, (1, 2, 3, 5)), *zip(TEXTS, (5, 3, 2, 1))])
def test_probabilities_are_those_of_the_equations(name, order):
    dictionary = make_dictionary(V)
    plain = PlainKneserNey(TEXTS[name], order=order, vocabulary=vocabulary_of(dictionary))
    estimate = estimate_model(stream_of(TEXTS[name], dictionary), dictionary, order=order)
    assert estimate.num_words == V - 2
    for k, discounts in enumerate(estimate.discounts, 1):
        assert discounts.values == pytest.approx(list(plain.discounts[k].values()), rel=1e-12)
        assert (discounts.source == "fallback") == (plain.discounts[k] == FALLBACK)
    other = random_lines(num_words=V - 4, num_lines=30, seed=2)
    for lines in (TEXTS[name], other):
        expected = [p for line in lines for p in plain.sentence_probs(line)]
        probs = estimate.model.log_probs(stream_of(lines, dictionary)).exp()
        assert probs.dtype == torch.float64 and probs.tolist() == pytest.approx(expected, rel=1e-11)


@pytest.mark.data
@pytest.mark.slow
def test_penn_treebank_has_the_published_perplexity():
    folder = corpus_folder("ptb")
    texts = {split: [line.split() for line in open(folder / f"{split}.txt")] for split in ("train", "valid", "test")}
    dictionary = Dictionary()
    for word in sorted({word for line in texts["train"] for word in line}):
        dictionary.add_symbol(word)
    model = estimate_model(stream_of(texts["train"], dictionary), dictionary, order=5).model

    def perplexity(split):
        log_probs = model.log_probs(stream_of(texts[split], dictionary))
        return len(log_probs), math.exp(-log_probs.mean())

    # 141.2 in Mikolov et al. 2011; the digits are those of KenLM's lmplz 0.3.0
    assert perplexity("test") == (82_430, pytest.approx(141.1862, rel=1e-4))
    assert perplexity("valid") == (73_760, pytest.approx(148.0074, rel=1e-4))


def counts_with(*numbers):
    """Counts of which so many are one, two ..., and some zeros and large ones."""
    return torch.tensor([count for count, n in enumerate(numbers, 1) for _ in range(n)] + [0, 0, 9, 12])


@pytest.mark.parametrize("numbers", [(0, 5, 3, 2), (10, 0, 3, 2), (10, 5, 0, 2), (10, 5, 9, 2), (1, 1, 2, 1), ()])
def test_undefined_and_negative_discounts_fall_back(numbers):
    assert estimate_discounts(counts_with(10, 5, 3, 0)) == Discounts((0.5, 1.1, 3.0), "counts")
    assert estimate_discounts(counts_with(*numbers)) == Discounts(DISCOUNTS_FALLBACK, "fallback")


def test_the_last_line_may_lack_its_end():
    dictionary = make_dictionary(V)
    stream = stream_of([["w1", "w2"]], dictionary)
    found = [estimate_model(text, dictionary, order=3).model.num_ngrams(3) for text in (stream, stream[:-1])]
    assert found == [2, 1]


@pytest.mark.parametrize(
    "lines, order, message",
    [
        ([["w1"], ["w2", "w3"], []], 6, "order 6: the longest line has 4 words, both its marks included: give at most"),
        ([["w1", "<s>"]], 2, "the text holds <s>, which stands for no word"),
        ([["w1", "<pad>"]], 2, "the text holds <pad>, which stands for no word"),
    ],
)
def test_what_cannot_be_counted_is_refused(lines, order, message):
    dictionary = make_dictionary(V)
    estimate_model(stream_of([["w2", "w3"]], dictionary), dictionary, order=4)
    with pytest.raises(ValueError, match=message):
        estimate_model(stream_of(lines, dictionary), dictionary, order=order)
