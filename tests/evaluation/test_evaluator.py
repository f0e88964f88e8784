"""The grid search, and evaluation."""

import math

import pytest
import torch
from builders import build_tiny_lm, make_dictionary

from fairseq_plugins.commands.method_flags import grid_points, read_methods
from fairseq_plugins.evaluation.dynamic_evaluation import mean_squared_gradients
from fairseq_plugins.evaluation.evaluator import Evaluator, evaluate_ngram_model
from fairseq_plugins.evaluation.methods import EvaluatedText, UnigramCache
from fairseq_plugins.evaluation.scoring import evaluate_perplexity
from fairseq_plugins.ngrams.kneser_ney import estimate_model


@pytest.fixture
def evaluator(tmp_path):
    model = build_tiny_lm("tied", dropout_output=0.4)
    return Evaluator([model], checkpoints=[tmp_path / "model.pt"], data=tmp_path, window=7)


@pytest.fixture
def text(evaluator, tokens):
    return EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)


def methods_of(*items, **fixed):
    """The methods of every point of a grid."""
    return [read_methods(flags) for flags in grid_points(items, fixed=fixed)]


def test_every_point_has_its_own_figure(evaluator, text):
    points = methods_of("cache=5:9,0:0.3,0.1", "unigram-cache=5,0:0.2", "temperature=0.8:1.5", "dropout-samples=1")
    expected = [evaluator.evaluate(text, methods)[0].nll for methods in points]
    assert evaluator.tune(text, points) == pytest.approx(expected, rel=1e-12)
    assert len(set(expected)) > 8 == len(points) / 2


def test_what_does_not_fit_models_or_data_is_refused_before_any_work(evaluator, tokens):
    with pytest.raises(ValueError, match="--dropout-scale 2.5: the model has a dropout rate of 0.4"):
        evaluator.check(read_methods({"dropout-samples": "1", "dropout-scale": "2.5"})[0])
    with pytest.raises(ValueError, match="there is no split 'train'"):
        evaluator.check(read_methods({"dynamic": "rms"})[0])
    evaluator._train = tokens
    with pytest.raises(ValueError, match="--dynamic-rows 31: train has 61 tokens; give at most 30"):
        evaluator.check(read_methods({"dynamic": "rms", "dynamic-rows": "31"})[0])
    evaluator.check(read_methods({"dynamic": "rms", "dynamic-rows": "30", "temperature": "0.9"})[0])
    assert not any(hasattr(part, "temperature") and part.temperature != 1 for part in evaluator.models[0].modules())


def test_gradient_statistics_are_those_at_temperature_one(evaluator, text, tokens):
    evaluator.checkpoints[0].write_bytes(b"a checkpoint")
    evaluator._train = tokens
    methods = read_methods({"dynamic": "rms", "dynamic-rows": "4", "dynamic-segment": "3", "temperature": "0.5"})
    evaluator.evaluate(text, methods)
    (model,), (found,) = evaluator.models, evaluator.statistics(methods.passes.dynamic)
    expected = mean_squared_gradients(model, tokens, num_rows=4, segment=3)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_points_whose_weights_diverge_have_a_large_loss_or_an_infinite_one(evaluator, text):
    points = methods_of("dynamic-rate=3e38:0.01:1e37", "unigram-cache=5,0:0.2", dynamic="sgd")
    found = evaluator.tune(text, points)
    assert [nll > 800 for nll in found] == [True, True, False, False, True, True] and math.isinf(found[0])
    with pytest.raises(ValueError, match="--dynamic-rate 3e\\+38: the weights diverged; give a lower one"):
        evaluator.tune(text, points[:2])


def test_the_loss_of_points_whose_mixture_is_no_number_is_infinite(evaluator, text, monkeypatch):
    points = methods_of("unigram-cache=5,0.1:0.2:0")

    def interpolated(log_probs, components, weights):
        return log_probs * (math.nan if list(weights) == [0.1] else 1)

    monkeypatch.setattr("fairseq_plugins.evaluation.evaluator.interpolate", interpolated)
    assert [math.isinf(nll) for nll in evaluator.tune(text, points)] == [True, False, False]
    with pytest.raises(ValueError, match="--tune: no point of the grid has a finite loss: give other values"):
        evaluator.tune(text, points[:1])
    with pytest.raises(ValueError, match="the loss of the text is nan: the mixture gives a word no finite"):
        evaluator.evaluate(text, points[0])


def test_models_read_the_text_once_for_what_is_mixed(evaluator, text, monkeypatch):
    score, read = evaluator.score, []

    def counted(text, passes, components):
        read.append((passes.temperature, len(components)))
        return score(text, passes, components)

    monkeypatch.setattr(evaluator, "score", counted)
    evaluator.tune(text, methods_of("cache=5:9,0:0.1:0.2:0.3,0.1:1", "temperature=0.9:1"))
    assert read == [(0.9, 4), (1.0, 4)]


def test_an_evaluation_is_static_without_methods(evaluator, text, tokens):
    found, words_per_second = evaluator.evaluate(text, read_methods({}))
    assert found == evaluate_perplexity(evaluator.models, tokens, num_rows=2, window=7)
    assert words_per_second > 0 and torch.is_grad_enabled()


@pytest.mark.parametrize("num_rows", [1, 5])
def test_probabilities_of_ngrams_meet_the_targets_within_their_lines(num_rows, score_text, tmp_path):
    """Lines go on from row to row."""
    model, tokens = build_tiny_lm("tied").double(), torch.randint(2, 7, (62,))
    ngrams, path = estimate_model(tokens, make_dictionary(23), order=2).model, tmp_path / "model, of order 2.arpa"
    ngrams.write_arpa(path)
    static = score_text([model], tokens, num_rows=num_rows)
    found = score_text([model], tokens, num_rows=num_rows, window=4, ngram=f"{path},0.3")
    known = ngrams.log_probs(tokens)[: 62 // num_rows * num_rows].exp().view(num_rows, -1)[:, 1:]
    torch.testing.assert_close(found, torch.log(0.7 * static.exp() + 0.3 * known), rtol=1e-5, atol=1e-5)


# an n-gram model alone

WORDS = [5, 3, 6, 2, 2, 3, 7, 5, 2]


@pytest.fixture
def ngram_model():
    return estimate_model(torch.tensor(WORDS), make_dictionary(12), order=3).model


@pytest.mark.parametrize("weight, mixed", [(0, {}), (0.3, {UnigramCache(window=4): 0.3})])
def test_an_ngram_model_has_two_counts_and_a_cache_from_the_second_token_on(weight, mixed, ngram_model):
    probs = ngram_model.log_probs(torch.tensor(WORDS)).exp().tolist()
    for place in range(1, len(WORDS)):
        seen = WORDS[max(place - 4, 0) : place]
        probs[place] = (1 - weight) * probs[place] + weight * seen.count(WORDS[place]) / len(seen)
    all_tokens, without_first = evaluate_ngram_model(ngram_model, torch.tensor(WORDS), mixed=mixed)
    assert (all_tokens.num_tokens, without_first.num_tokens) == (9, 8)
    assert all_tokens.num_unknown == without_first.num_unknown == 2
    assert all_tokens.nll == pytest.approx(-sum(map(math.log, probs)) / 9)
    assert without_first.nll == pytest.approx(-sum(map(math.log, probs[1:])) / 8)


def test_a_token_without_probability_is_named(ngram_model):
    with pytest.raises(ValueError, match="2 of 4 tokens, such as '<pad>', have probability zero: use a model that has"):
        evaluate_ngram_model(ngram_model, torch.tensor([5, 1, 0, 2]), mixed={})
