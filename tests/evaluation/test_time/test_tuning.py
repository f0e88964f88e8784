"""The search over a grid: its points, and that each has the figure of an evaluation of its own."""

import math

import pytest
import torch

from fairseq_plugins.evaluation.test_time import evaluator as module
from fairseq_plugins.evaluation.test_time.evaluator import Evaluator
from fairseq_plugins.evaluation.test_time.flags import read_methods
from fairseq_plugins.evaluation.test_time.gradient_statistics import mean_squared_gradients
from fairseq_plugins.evaluation.test_time.methods import EvaluatedText
from fairseq_plugins.evaluation.test_time.token_scores import TokenScores
from fairseq_plugins.evaluation.test_time.tuning import TunedPoint, grid_points, tune


def test_a_grid_has_all_combinations():
    points = grid_points(["cache=5:9,0.1:0.2,1", "temperature=0.9:1"], fixed={"cache-start": "first"})
    expected = [
        {"cache-start": "first", "cache": f"{window},{weight},1", "temperature": temperature}
        for window in ("5", "9")
        for weight in ("0.1", "0.2")
        for temperature in ("0.9", "1")
    ]
    assert points == expected


def test_without_axes_there_is_what_is_fixed():
    assert grid_points([], fixed={"temperature": "0.9"}) == [{"temperature": "0.9"}]


def test_the_file_of_an_ngram_model_is_one_part():
    points = grid_points(["ngram=C:/a,b/x.arpa,0.1:0.2"], fixed={})
    assert points == [{"ngram": "C:/a,b/x.arpa,0.1"}, {"ngram": "C:/a,b/x.arpa,0.2"}]


@pytest.mark.parametrize(
    "items, message",
    [
        (["cache"], "--tune cache: give it as FLAG=VALUES"),
        (["--cache=5,0.1,1"], "give it as FLAG=VALUES"),
        (["window=5"], "--tune window=5: give it as FLAG=VALUES, with one of temperature, cache"),
        (["temperature=1", "temperature=2"], "temperature is given twice"),
        (["dynamic=rms"], "dynamic is given twice"),
    ],
)
def test_what_is_no_grid_is_refused(items, message):
    with pytest.raises(ValueError, match=message):
        grid_points(items, fixed={"dynamic": "rms"})


@pytest.fixture
def evaluator(build_tiny_lm, make_dictionary, tmp_path):
    model = build_tiny_lm("tied", dropout_output=0.4)
    return Evaluator(
        [model],
        checkpoints=[tmp_path / "model.pt"],
        data=tmp_path,
        dictionary=make_dictionary(23),
        num_rows=2,
        window=7,
        device="cpu",
        show_progress=False,
    )


def test_every_point_has_its_own_figure_and_the_best_is_first(evaluator, tokens):
    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    grid = ["cache=5:9,0:0.3,0.1", "unigram-cache=5,0:0.2", "temperature=0.8:1.5"]
    points = grid_points(grid, fixed={"dropout-samples": "1"})
    tuned = evaluator.tune(text, points)
    assert len(tuned) == len(points) == 16
    assert sorted(map(str, points)) == sorted(str(point.flags) for point in tuned)
    for point in tuned:
        expected = evaluator.evaluate(text, read_methods(point.flags)).perplexity
        assert point.nll == pytest.approx(expected.nll, rel=1e-12)
        assert point.perplexity == pytest.approx(expected.perplexity, rel=1e-12)
    assert [point.nll for point in tuned] == sorted(point.nll for point in tuned)


def test_what_does_not_fit_models_or_data_is_refused_before_any_work(evaluator, tokens):
    with pytest.raises(ValueError, match="--dropout-scale 2.5: the model has a dropout rate of 0.4"):
        evaluator.check(read_methods({"dropout-samples": "1", "dropout-scale": "2.5"}))
    with pytest.raises(ValueError, match="there is no split 'train'"):
        evaluator.check(read_methods({"dynamic": "rms"}))
    evaluator._train = tokens
    with pytest.raises(ValueError, match="--dynamic-rows 31: train has 61 tokens; give at most 30"):
        evaluator.check(read_methods({"dynamic": "rms", "dynamic-rows": "31"}))
    evaluator.check(read_methods({"dynamic": "rms", "dynamic-rows": "30", "temperature": "0.9"}))
    assert not any(hasattr(part, "temperature") and part.temperature != 1 for part in evaluator.models[0].modules())


def test_gradient_statistics_are_those_at_temperature_one(evaluator, tokens):
    evaluator.checkpoints[0].write_bytes(b"a checkpoint")
    evaluator._train = tokens
    methods = read_methods({"dynamic": "rms", "dynamic-rows": "4", "dynamic-segment": "3", "temperature": "0.5"})
    evaluator.evaluate(EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2), methods)
    (model,), (found,) = evaluator.models, evaluator.statistics(methods.passes.dynamic)
    expected = mean_squared_gradients(model, tokens, num_rows=4, segment=3, device="cpu", show_progress=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_gradient_statistics_are_kept_for_each_segment_and_number_of_rows(evaluator, tokens, monkeypatch):
    counted = []
    monkeypatch.setattr(
        module, "kept_gradient_statistics", lambda *_, num_rows, segment, **__: counted.append((num_rows, segment))
    )
    evaluator._train = tokens
    for rows, segment in [(2, 5), (2, 7), (3, 5), (2, 5)]:
        flags = {"dynamic": "rms", "dynamic-rows": str(rows), "dynamic-segment": str(segment)}
        evaluator.statistics(read_methods(flags).passes.dynamic)
    assert counted == [(2, 5), (2, 7), (3, 5)]


def test_points_whose_weights_diverge_come_last(evaluator, tokens):
    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    points = grid_points(["dynamic-rate=3e38:0.01:1e37", "unigram-cache=5,0:0.2"], fixed={"dynamic": "sgd"})
    tuned = evaluator.tune(text, points)
    assert [point.flags["dynamic-rate"] for point in tuned[:2]] == ["0.01"] * 2
    assert [point.perplexity for point in tuned[2:]] == [math.inf] * 4 and len(tuned) == 6
    with pytest.raises(ValueError, match="--dynamic-rate 3e\\+38: the weights diverged; give a lower one"):
        evaluator.tune(text, [point for point in points if point["dynamic-rate"] == "3e38"])


def test_points_whose_mixture_is_no_number_come_last(evaluator, tokens, monkeypatch):
    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    points = grid_points(["unigram-cache=5,0.1:0.2:0"], fixed={})

    def mixed(window, weights):
        return window.log_probs * (math.nan if list(weights) == [0.1] else 1)

    monkeypatch.setattr(TokenScores, "mixed", mixed)
    tuned = evaluator.tune(text, points)
    assert tuned[-1].flags == points[0] and [math.isinf(point.nll) for point in tuned] == [False, False, True]
    with pytest.raises(ValueError, match="--tune: no point of the grid has a finite loss: give other values"):
        evaluator.tune(text, points[:1])
    with pytest.raises(ValueError, match="the loss of the text is nan: what is mixed gives a word no finite"):
        evaluator.evaluate(text, read_methods(points[0]))


def test_a_perplexity_that_overflows_is_infinite():
    assert TunedPoint({}, 800.0).perplexity == math.inf and TunedPoint({}, 2.0).perplexity == math.exp(2)


def test_models_read_the_text_once_for_what_is_mixed(evaluator, tokens):
    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    read = []

    def score(passes, components):
        read.append((passes.temperature, len(components)))
        return evaluator.score(text, passes, components)

    points = grid_points(["cache=5:9,0:0.1:0.2:0.3,0.1:1", "temperature=0.9:1"], fixed={})
    tune(points, score, show_progress=False)
    assert read == [(0.9, 4), (1.0, 4)]


def test_an_evaluation_is_static_without_methods(evaluator, tokens):
    from fairseq_plugins.evaluation.perplexity import evaluate_perplexity

    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    found = evaluator.evaluate(text, read_methods({}))
    assert found.perplexity == evaluate_perplexity(evaluator.models, tokens, unknown=3, num_rows=2, window=7)
    assert found.words_per_second > 0 and torch.is_grad_enabled()
