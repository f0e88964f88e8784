"""Perplexity of an n-gram model alone."""

import math

import pytest
import torch

from fairseq_plugins.evaluation.evaluator import evaluate_ngram_model
from fairseq_plugins.evaluation.test_time import UnigramCache
from fairseq_plugins.ngrams.kneser_ney import estimate_model


def test_two_counts_of_one_stream(make_dictionary):
    dictionary = make_dictionary(12)
    stream = torch.tensor([5, 3, 6, 2, 2, 3, 7, 8, 2])
    model = estimate_model(stream, dictionary, order=3).model
    nll = -model.log_probs(stream)
    result = evaluate_ngram_model(model, stream)
    assert (result.all_tokens.num_tokens, result.without_first.num_tokens) == (9, 8)
    assert result.all_tokens.num_unknown == result.without_first.num_unknown == 2
    assert result.all_tokens.perplexity == pytest.approx(math.exp(nll.mean()))
    assert result.without_first.perplexity == pytest.approx(math.exp(nll[1:].mean()))


def test_a_token_without_probability_is_named(make_dictionary):
    dictionary = make_dictionary(12)
    stream = torch.tensor([5, 6, 2])
    model = estimate_model(stream, dictionary, order=2).model
    with pytest.raises(ValueError, match="2 of 4 tokens, such as '<pad>', have probability zero: use a model that has"):
        evaluate_ngram_model(model, torch.tensor([5, 1, 0, 2]))


def test_a_cache_is_mixed_in_from_the_second_token_on(make_dictionary):
    dictionary = make_dictionary(12)
    stream = torch.tensor([5, 3, 6, 2, 3, 3, 7, 5, 2])
    model = estimate_model(stream, dictionary, order=3).model
    probs = model.log_probs(stream).exp().tolist()
    words = stream.tolist()
    for place in range(1, len(words)):
        seen = words[max(place - 4, 0) : place]
        probs[place] = 0.7 * probs[place] + 0.3 * seen.count(words[place]) / len(seen)
    result = evaluate_ngram_model(model, stream, mixed=[(UnigramCache(window=4), 0.3)])
    assert result.all_tokens.nll == pytest.approx(-sum(map(math.log, probs)) / 9)
    assert result.without_first.nll == pytest.approx(-sum(map(math.log, probs[1:])) / 8)
