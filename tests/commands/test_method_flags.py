"""Flags of test-time methods, and grids of their values."""

import pytest

from fairseq_plugins.commands.method_flags import FLAGS, grid_points, read_methods
from fairseq_plugins.evaluation.dynamic_evaluation import DynamicOptions
from fairseq_plugins.evaluation.methods import (
    ContinuousCache,
    DropoutOptions,
    NGrams,
    Passes,
    UnigramCache,
)


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


def test_values_are_read(tmp_path):
    path = tmp_path / "a, b.arpa"
    path.touch()
    flags = {"cache": "500,0.1,1.0", "unigram-cache": "100,0.05", "ngram": f"{path},0.2", "temperature": "0.9"}
    flags |= {"dropout-samples": "10", "dropout-scale": "0.5", "seed": "3"}
    flags |= {"dynamic": "rms", "dynamic-rate": "1e-4", "dynamic-segment": "20"}
    passes, mixed = read_methods(flags)
    assert mixed == {
        ContinuousCache(window=500, theta=1.0, start="full"): 0.1,
        UnigramCache(window=100): 0.05,
        NGrams(path): 0.2,
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
    ({"dynamic": "sgd", "dynamic-rate": "1", "dynamic-decay": "2"}, "--dynamic-decay 2: with sgd give at most 1"),
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
