"""Flags of test-time methods, the grid search, and evaluation."""

import math

import pytest
import torch
from builders import build_tiny_lm, make_dictionary

from fairseq_plugins.evaluation.dynamic_evaluation import DynamicOptions, mean_squared_gradients
from fairseq_plugins.evaluation.evaluator import (
    FLAGS,
    Evaluator,
    TunedPoint,
    evaluate_ngram_model,
    grid_points,
    read_methods,
)
from fairseq_plugins.evaluation.scoring import evaluate_perplexity
from fairseq_plugins.evaluation.test_time import (
    CacheOptions,
    DropoutOptions,
    EvaluatedText,
    NGramOptions,
    Passes,
    TokenScores,
    UnigramCache,
    UnigramCacheOptions,
)
from fairseq_plugins.ngrams.kneser_ney import estimate_model


def test_a_grid_has_all_combinations_and_the_file_of_an_ngram_model_is_one_part():
    points = grid_points(["cache=5:9,0.1:0.2,1", "temperature=0.9:1"], fixed={"cache-start": "first"})
    expected = [
        {"cache-start": "first", "cache": f"{window},{weight},1", "temperature": temperature}
        for window in ("5", "9")
        for weight in ("0.1", "0.2")
        for temperature in ("0.9", "1")
    ]
    assert points == expected
    assert grid_points([], fixed={"temperature": "0.9"}) == [{"temperature": "0.9"}]
    files = grid_points(["ngram=C:/a,b/x.arpa,0.1:0.2"], fixed={})
    assert files == [{"ngram": "C:/a,b/x.arpa,0.1"}, {"ngram": "C:/a,b/x.arpa,0.2"}]


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
def evaluator(tmp_path):
    model = build_tiny_lm("tied", dropout_output=0.4)
    return Evaluator(
        [model],
        checkpoints=[tmp_path / "model.pt"],
        data=tmp_path,
        dictionary=make_dictionary(23),
        num_rows=2,
        window=7,
    )


def test_every_point_has_its_own_figure_and_the_best_is_first(evaluator, tokens):
    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    grid = ["cache=5:9,0:0.3,0.1", "unigram-cache=5,0:0.2", "temperature=0.8:1.5"]
    points = grid_points(grid, fixed={"dropout-samples": "1"})
    tuned = evaluator.tune(text, points)
    assert len(tuned) == len(points) == 16
    assert sorted(map(str, points)) == sorted(str(point.flags) for point in tuned)
    for point in tuned:
        expected, _ = evaluator.evaluate(text, *read_methods(point.flags))
        assert point.nll == pytest.approx(expected.nll, rel=1e-12)
        assert point.perplexity == pytest.approx(expected.perplexity, rel=1e-12)
    assert [point.nll for point in tuned] == sorted(point.nll for point in tuned)


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


def test_gradient_statistics_are_those_at_temperature_one(evaluator, tokens):
    evaluator.checkpoints[0].write_bytes(b"a checkpoint")
    evaluator._train = tokens
    passes, mixed = read_methods({"dynamic": "rms", "dynamic-rows": "4", "dynamic-segment": "3", "temperature": "0.5"})
    evaluator.evaluate(EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2), passes, mixed)
    (model,), (found,) = evaluator.models, evaluator.statistics(passes.dynamic)
    expected = mean_squared_gradients(model, tokens, num_rows=4, segment=3)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


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
        evaluator.evaluate(text, *read_methods(points[0]))


def test_a_perplexity_that_overflows_is_infinite():
    assert TunedPoint({}, 800.0).perplexity == math.inf and TunedPoint({}, 2.0).perplexity == math.exp(2)


def test_models_read_the_text_once_for_what_is_mixed(evaluator, tokens, monkeypatch):
    text, score, read = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2), evaluator.score, []

    def counted(text, passes, components):
        read.append((passes.temperature, len(components)))
        return score(text, passes, components)

    monkeypatch.setattr(evaluator, "score", counted)
    evaluator.tune(text, grid_points(["cache=5:9,0:0.1:0.2:0.3,0.1:1", "temperature=0.9:1"], fixed={}))
    assert read == [(0.9, 4), (1.0, 4)]


def test_an_evaluation_is_static_without_methods(evaluator, tokens):
    text = EvaluatedText(tokens, dictionary=evaluator.dictionary, num_rows=2)
    found, words_per_second = evaluator.evaluate(text, *read_methods({}))
    assert found == evaluate_perplexity(evaluator.models, tokens, unknown=3, num_rows=2, window=7)
    assert words_per_second > 0 and torch.is_grad_enabled()


def test_values_are_read(tmp_path):
    path = tmp_path / "a, b.arpa"
    path.touch()
    flags = {"cache": "500,0.1,1.0", "unigram-cache": "100,0.05", "ngram": f"{path},0.2", "temperature": "0.9"}
    flags |= {"dropout-samples": "10", "dropout-scale": "0.5", "seed": "3"}
    flags |= {"dynamic": "rms", "dynamic-rate": "1e-4", "dynamic-segment": "20"}
    passes, mixed = read_methods(flags)
    assert mixed == {
        CacheOptions(window=500, theta=1.0, start="full"): 0.1,
        UnigramCacheOptions(window=100): 0.05,
        NGramOptions(path): 0.2,
    }
    assert passes.temperature == 0.9
    assert passes.dropout == DropoutOptions(num_samples=10, scale=0.5, seed=3)
    assert passes.dynamic == DynamicOptions(rule="rms", rate=1e-4, decay=2e-3, epsilon=2e-5, segment=20, rows=100)


def test_defaults():
    assert read_methods({}) == (Passes(), {})
    rms = read_methods({"dynamic": "rms"})[0].dynamic
    assert (rms.rate, rms.decay, rms.epsilon, rms.segment, rms.rows) == (5e-5, 2e-3, 2e-5, 5, 100)
    sgd = read_methods({"dynamic": "sgd", "dynamic-rate": "1"})[0].dynamic
    assert (sgd.rate, sgd.decay, sgd.segment) == (1, 0, 5)
    assert read_methods({"dropout-samples": "1"})[0].dropout.scale == 0.8


REFUSED = [
    ({"cache": "500,0.1"}, "--cache 500,0.1: give it as WINDOW,WEIGHT,THETA"),
    ({"cache": "0,0.1,1"}, "--cache WINDOW 0: give a whole number of at least 1"),
    ({"cache": "1.5,0.1,1"}, "--cache WINDOW 1.5: give a whole number"),
    ({"cache": "5,1,1"}, "--cache WEIGHT is 1: give less than 1"),
    ({"cache": "5,-0.1,1"}, "--cache WEIGHT -0.1: give 0 or more"),
    ({"cache": "5,nan,1"}, "--cache WEIGHT nan: give 0 or more"),
    ({"cache": "5,0.1,-1"}, "--cache THETA -1.0: give 0 or more"),
    ({"cache": "5,0.1,inf"}, "--cache THETA inf: give at most 1e+06"),
    ({"cache": "5,0.1,1", "cache-start": "now"}, "--cache-start now: choose one of full, first"),
    ({"cache-start": "first"}, "--cache-start belongs to --cache: give that as well, or leave it out"),
    ({"unigram-cache": "5"}, "--unigram-cache 5: give it as WINDOW,WEIGHT"),
    ({"unigram-cache": "0,0.1"}, "--unigram-cache WINDOW 0"),
    ({"cache": "5,0.7,1", "unigram-cache": "5,0.3"}, "--cache WEIGHT + --unigram-cache WEIGHT is 1: give less"),
    ({"cache": "5,0.1,1e39"}, "--cache THETA 1e39: give at most 1e+06"),
    ({"temperature": "1e39"}, "--temperature 1e39: give at most 3.4"),
    ({"ngram": "model.arpa"}, "--ngram model.arpa: give it as ARPA,WEIGHT"),
    ({"ngram": "nowhere.arpa,0.1"}, "--ngram nowhere.arpa: there is no such file"),
    ({"temperature": "0"}, "--temperature 0.0: give a value above 0"),
    ({"temperature": "warm"}, "--temperature warm: give a number"),
    ({"dynamic": "adam"}, "--dynamic adam: choose one of rms, sgd"),
    ({"dynamic": "sgd"}, "--dynamic sgd needs a --dynamic-rate"),
    ({"dynamic": "sgd", "dynamic-rate": "1", "dynamic-rows": "5"}, "--dynamic-rows belongs to --dynamic rms"),
    ({"dynamic": "sgd", "dynamic-rate": "1", "dynamic-decay": "2"}, "--dynamic-decay 2: with sgd it is at most 1"),
    ({"dynamic": "rms", "dynamic-rate": "-1"}, "--dynamic-rate -1.0: give 0 or more"),
    ({"dynamic": "rms", "dynamic-epsilon": "0"}, "--dynamic-epsilon 0.0: give a value above 0"),
    ({"dynamic": "rms", "dynamic-segment": "0"}, "--dynamic-segment 0: give a whole number of at least 1"),
    ({"dynamic": "rms", "dynamic-rows": "x"}, "--dynamic-rows x: give a whole number"),
    ({"dynamic-rate": "1"}, "--dynamic-rate belongs to --dynamic"),
    ({"dropout-samples": "0"}, "--dropout-samples 0: give a whole number of at least 1"),
    ({"dropout-samples": "1", "dropout-scale": "-1"}, "--dropout-scale -1.0: give 0 or more"),
    ({"dropout-scale": "1"}, "--dropout-scale belongs to --dropout-samples"),
    ({"seed": "1"}, "--seed belongs to --dropout-samples"),
    ({"dropout-samples": "1", "seed": "-1"}, "--seed -1: give a whole number of at least 0"),
]


@pytest.mark.parametrize("flags, message", REFUSED)
def test_what_makes_no_sense_is_refused(flags, message):
    with pytest.raises(ValueError) as error:
        read_methods(flags)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_weights_that_leave_nothing_but_rounding_are_refused(tmp_path):
    (tmp_path / "model.arpa").touch()
    weights = {"cache": "5,0.7,1", "unigram-cache": "5,0.2", "ngram": f"{tmp_path}/model.arpa,0.1"}
    assert 0.7 + 0.2 + 0.1 < 1 == 0.1 + 0.2 + 0.7
    with pytest.raises(ValueError, match=r"^--cache WEIGHT \+ --unigram-cache WEIGHT \+ --ngram WEIGHT is 1: give"):
        read_methods(weights)
    _, mixed = read_methods({**weights, "unigram-cache": "5,0.19"})
    assert len(mixed) == 3


def test_every_flag_is_refused_for_some_value():
    assert {name for flags, _ in REFUSED for name in flags} == set(FLAGS)


UNIGRAMS = {"<unk>": 0.1, "</s>": 0.3, "w0": 0.4, "w1": 0.2}
AFTER_W0 = 0.75
"""Probability of w1 after w0."""


@pytest.fixture
def arpa(tmp_path):
    lines = ["\\data\\", "ngram 1=5", "ngram 2=1", "", "\\1-grams:", "-99\t<s>\t0"]
    backoff = math.log10((1 - AFTER_W0) / (1 - UNIGRAMS["w1"]))
    for word, prob in UNIGRAMS.items():
        lines.append(f"{math.log10(prob)}\t{word}\t{backoff if word == 'w0' else 0}")
    lines += ["", "\\2-grams:", f"{math.log10(AFTER_W0)}\tw0 w1", "", "\\end\\"]
    path = tmp_path / "model, of order 2.arpa"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("num_rows", [1, 5])
def test_its_probabilities_meet_the_targets_within_their_lines(num_rows, arpa, score_text):
    dictionary = make_dictionary(23)
    words = "w0 w1 </s> w1 w0 </s> w1 w1 w0 w1 </s> w0".split()
    tokens = torch.tensor([dictionary.index(word) for word in words])
    probs = []
    for before, word in zip(words, words[1:]):
        prob = UNIGRAMS[word]
        if before == "w0":
            prob = AFTER_W0 if word == "w1" else prob * (1 - AFTER_W0) / (1 - UNIGRAMS["w1"])
        probs.append(prob)
    model = build_tiny_lm("tied").double()
    static = score_text([model], tokens, num_rows=num_rows)
    found = score_text([model], tokens, num_rows=num_rows, window=4, ngram=f"{arpa},0.3")
    used = len(words) // num_rows * num_rows
    known = torch.tensor([0.0, *probs], dtype=torch.float64)[:used].view(num_rows, -1)[:, 1:]
    torch.testing.assert_close(found, torch.log(0.7 * static.exp() + 0.3 * known), rtol=1e-5, atol=1e-5)


# an n-gram model alone


def test_two_counts_of_one_stream():
    dictionary = make_dictionary(12)
    stream = torch.tensor([5, 3, 6, 2, 2, 3, 7, 8, 2])
    model = estimate_model(stream, dictionary, order=3).model
    nll = -model.log_probs(stream)
    all_tokens, without_first = evaluate_ngram_model(model, stream)
    assert (all_tokens.num_tokens, without_first.num_tokens) == (9, 8)
    assert all_tokens.num_unknown == without_first.num_unknown == 2
    assert all_tokens.perplexity == pytest.approx(math.exp(nll.mean()))
    assert without_first.perplexity == pytest.approx(math.exp(nll[1:].mean()))


def test_a_token_without_probability_is_named():
    dictionary = make_dictionary(12)
    stream = torch.tensor([5, 6, 2])
    model = estimate_model(stream, dictionary, order=2).model
    with pytest.raises(ValueError, match="2 of 4 tokens, such as '<pad>', have probability zero: use a model that has"):
        evaluate_ngram_model(model, torch.tensor([5, 1, 0, 2]))


def test_a_cache_is_mixed_in_from_the_second_token_on():
    dictionary = make_dictionary(12)
    stream = torch.tensor([5, 3, 6, 2, 3, 3, 7, 5, 2])
    model = estimate_model(stream, dictionary, order=3).model
    probs = model.log_probs(stream).exp().tolist()
    words = stream.tolist()
    for place in range(1, len(words)):
        seen = words[max(place - 4, 0) : place]
        probs[place] = 0.7 * probs[place] + 0.3 * seen.count(words[place]) / len(seen)
    all_tokens, without_first = evaluate_ngram_model(model, stream, mixed=[(UnigramCache(window=4), 0.3)])
    assert all_tokens.nll == pytest.approx(-sum(map(math.log, probs)) / 9)
    assert without_first.nll == pytest.approx(-sum(map(math.log, probs[1:])) / 8)
