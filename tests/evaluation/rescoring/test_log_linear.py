"""Weights of features: the search along a line against a grid, the whole search against what can be reached."""

from dataclasses import replace

import numpy as np
import pytest

from fairseq_plugins.evaluation.rescoring.log_linear import TuningSet, tune_weights, weighted_sums
from fairseq_plugins.scoring.corpus_metrics import CorpusMetric

N, K, F = 30, 6, 3


class Share(CorpusMetric):
    """What is right by what is chosen; its parts do not add up as means do."""

    def statistics(self, hypothesis, reference):
        raise NotImplementedError

    def score(self, total):
        return 100 * total[0] / total[1]


@pytest.fixture
def data():
    generator = np.random.default_rng(3)
    is_candidate = np.arange(K) < generator.integers(1, K + 1, size=N)[:, None]
    values = generator.normal(size=(N, K, F)) * [1, 100, 0.01] * is_candidate[..., None]
    statistics = np.stack([generator.integers(0, 5, (N, K)), generator.integers(5, 9, (N, K))], 2).astype(float)
    return TuningSet(values=values, is_candidate=is_candidate, statistics=statistics, metric=Share())


def test_sums_are_of_candidates_alone(data):
    weights = np.array([1.0, -0.5, 2.0])
    sums = weighted_sums(data.values, data.is_candidate, weights)
    assert np.isneginf(sums).sum() == (~data.is_candidate).sum() > 0
    for n in range(N):
        for k in range(int(data.is_candidate[n].sum())):
            assert sums[n, k] == pytest.approx(sum(data.values[n, k, f] * weights[f] for f in range(F)))


def score_by_hand(data, weights):
    total = np.zeros(2)
    for n in range(N):
        choices = [data.values[n, k] @ weights for k in range(int(data.is_candidate[n].sum()))]
        total += data.statistics[n, int(np.argmax(choices))]
    return 100 * total[0] / total[1]


def test_the_best_point_of_a_line_is_at_least_that_of_a_fine_grid(data):
    generator = np.random.default_rng(5)
    for _ in range(2):
        weights, direction = generator.normal(size=(2, F)) / [1, 100, 0.01]
        step, best = data.best_step(weights, direction)
        assert best == pytest.approx(score_by_hand(data, weights + step * direction), rel=1e-12)
        grid = np.concatenate([np.linspace(-8, 8, 201), [-1e4, 1e4]])
        scores = [score_by_hand(data, weights + place * direction) for place in grid]
        assert best >= max(scores) and max(scores) > min(scores)


def test_where_nothing_is_better_no_step_is_made(data):
    weights = np.array([1.0, 0.0, 0.0])
    assert data.best_step(weights, np.zeros(F)) == (0.0, data.score(weights))


def test_the_search_finds_the_feature_that_tells_the_best_candidates(data):
    quality = data.statistics[..., 0] / data.statistics[..., 1] * data.is_candidate
    values = np.concatenate([data.values, -0.001 * quality[..., None]], axis=2)
    tuned = TuningSet(values=values, is_candidate=data.is_candidate, statistics=data.statistics, metric=data.metric)
    weights = tune_weights(tuned, num_restarts=2, seed=1)
    assert np.abs(weights).sum() == pytest.approx(1) and weights[3] < 0
    assert tuned.score(weights) >= tuned.score(np.array([0, 0, 0, -1.0]))
    assert (weights == tune_weights(tuned, num_restarts=2, seed=1)).all()


def test_the_order_of_the_first_feature_is_the_least_that_is_reached(data):
    weights = tune_weights(data, num_restarts=0, seed=1)
    assert data.score(weights) >= data.score(np.array([1.0, 0.0, 0.0]))


def test_a_feature_that_never_differs_does_no_harm(data):
    constant = TuningSet(
        values=np.where(data.is_candidate[..., None], [[[1.0, 2.0, 3.0]]], 0),
        is_candidate=data.is_candidate,
        statistics=data.statistics,
        metric=data.metric,
    )
    assert np.isfinite(tune_weights(constant, num_restarts=1, seed=1)).all()


def test_what_all_candidates_of_a_sentence_share_has_no_part_in_the_weights(data):
    shift = np.random.default_rng(7).normal(size=(N, 1, F)) * [50, 100, 3]
    shifted = replace(data, values=np.where(data.is_candidate[..., None], data.values + shift, 0))
    found = [tune_weights(one, num_restarts=1, seed=1) for one in (data, shifted)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_another_seed_searches_elsewhere(data):
    one, other = (tune_weights(data, num_restarts=1, seed=seed) for seed in (1, 2))
    assert (one != other).any()
