"""Smoothing against dictionaries of counts, and the published perplexity of Penn Treebank."""

import itertools
import math

import pytest
import torch
from corpora import corpus_folder
from fairseq.data import Dictionary
from plain_kneser_ney import FALLBACK, PlainKneserNey
from small_texts_of_ngrams import random_lines, stream_of, vocabulary_of

from fairseq_plugins.ngrams.kneser_ney import estimate_model

V = 44
TEXTS = {
    "words of all counts": random_lines(num_words=40),
    "a word that never occurs": random_lines(num_words=V - 5),
    "unknown words": [["<unk>" if word == "w1" else word for word in line] for line in random_lines(num_words=40)],
    "too small": random_lines(num_words=6, num_lines=8, seed=3),
}


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("name", TEXTS)
def test_probabilities_are_those_of_the_equations(name, order, make_dictionary):
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


def test_some_texts_define_discounts_and_some_do_not(make_dictionary):
    dictionary = make_dictionary(V)

    def sources(name):
        estimate = estimate_model(stream_of(TEXTS[name], dictionary), dictionary, order=3)
        return [discounts.source for discounts in estimate.discounts]

    assert sources("words of all counts") == ["counts"] * 3
    assert "fallback" in sources("too small")


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_sum_to_one_after_every_context(order, make_dictionary):
    dictionary = make_dictionary(16)
    words = vocabulary_of(dictionary)
    lines = random_lines(num_words=11, num_lines=60)
    model = estimate_model(stream_of(lines, dictionary), dictionary, order=order).model
    inner = [word for word in words if word != "</s>"]
    starts = [context for n in range(order) for context in itertools.product(inner[:6], repeat=n)]  # after <s>
    whole = list(itertools.product(inner, repeat=order - 1))[:1500]  # the start is out of sight
    for contexts in (starts, whole):
        stream = stream_of([(*context, word) for context in contexts for word in words], dictionary)
        places = torch.cumsum(torch.tensor([len(context) + 2 for context in contexts for _ in words]), 0) - 2
        sums = model.log_probs(stream)[places].exp().view(len(contexts), len(words)).sum(dim=1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)


def test_lines_do_not_know_each_other(make_dictionary):
    dictionary = make_dictionary(V)
    lines = random_lines(num_words=30)
    model = estimate_model(stream_of(lines, dictionary), dictionary, order=5).model
    together = model.log_probs(stream_of(lines, dictionary))
    alone = torch.cat([model.log_probs(stream_of([line], dictionary)) for line in lines])
    assert torch.equal(together, alone)
    backwards = estimate_model(stream_of(lines[::-1], dictionary), dictionary, order=5).model
    torch.testing.assert_close(backwards.log_probs(stream_of(lines, dictionary)), together, rtol=1e-12, atol=0)


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
