"""Rank of log-probabilities, against the singular values of the whole matrix."""

import pytest
import torch

from fairseq_plugins.evaluation.analyses import rank as rank_module
from fairseq_plugins.evaluation.analyses.rank import default_threshold, rank, singular_values

V = 61


@pytest.mark.parametrize("window", [7, 1000])
@pytest.mark.parametrize("name", ["tied", "drill", "mos"])
def test_singular_values_are_those_of_the_whole_matrix(name, window, build_tiny_lm, monkeypatch):
    model, tokens = build_tiny_lm(name, vocab_size=V).double(), torch.randint(V, (141,))
    with torch.no_grad():
        log_probs, _ = model.eval()(tokens[None, :-1])
    monkeypatch.setattr(rank_module, "WINDOW", window)
    values = singular_values(model, tokens)
    torch.testing.assert_close(values, torch.linalg.svdvals(log_probs[0]), rtol=1e-6, atol=1e-4)


def test_one_softmax_has_the_rank_of_its_features_and_a_mixture_more(build_tiny_lm):
    tokens = torch.randint(V, (400,))
    ranks = {
        name: rank(singular_values(build_tiny_lm(name, vocab_size=V).double(), tokens), threshold=1e-3)
        for name in ("tied", "drill", "mos")
    }
    assert ranks["tied"] == ranks["drill"] == 8 + 2 and ranks["mos"] > 30


def test_there_are_no_more_values_than_positions(build_tiny_lm):
    values = singular_values(build_tiny_lm("mos", vocab_size=V).double(), torch.randint(V, (4,)))
    assert rank(values, threshold=0) == 3 and len(values) == V


def test_the_default_threshold_is_the_librarys():
    matrix = torch.randn(90, 40) @ torch.randn(40, 40)
    matrix[:, -1] = matrix[:, 0]
    values = torch.linalg.svdvals(matrix.double())
    assert rank(values, threshold=default_threshold(values, num_positions=90)) == torch.linalg.matrix_rank(matrix) == 39


@pytest.mark.parametrize("num_positions", [3, 10, 50])
def test_the_default_threshold_is_by_the_longer_side_of_the_matrix(num_positions):
    values = torch.linspace(4, 1, 10).double()
    expected = max(num_positions, 10) * 2**-23 * 4
    assert default_threshold(values, num_positions=num_positions) == pytest.approx(expected, rel=1e-12)
