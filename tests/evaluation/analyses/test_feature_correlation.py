"""Correlation of layers' features against NumPy's."""

import numpy as np
import pytest
import torch

from fairseq_plugins.evaluation.analyses.feature_correlation import correlation_matrices, layer_correlations
from fairseq_plugins.evaluation.analyses.layer_outputs import changed_layer_outputs
from fairseq_plugins.modules.lstm import WeightDropLSTM

V = 23


@pytest.fixture
def tokens():
    return torch.randint(V, (301,))


def outputs_of(model, tokens):
    model.eval()
    with torch.no_grad():
        return [layer[0].numpy() for layer in model(tokens[None, :-1])[1]["states"].layers[1:]]


@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
def test_matrices_are_those_of_all_outputs_at_once(window, cell, build_tiny_lm, tokens):
    model = build_tiny_lm("tied", rnn_cell=cell, dropout_hidden=0.5, dropout_output=0.5).double()
    matrices = correlation_matrices(model, tokens, window=window)
    for matrix, output in zip(matrices, outputs_of(model, tokens), strict=True):
        np.testing.assert_allclose(matrix.numpy(), np.corrcoef(output.T), rtol=1e-9, atol=1e-12)


def test_features_far_from_zero_lose_no_digits(build_tiny_lm, tokens):
    model = build_tiny_lm("tied").double()
    expected = np.corrcoef(outputs_of(model, tokens)[1].T)
    with changed_layer_outputs(model, lambda n, output: output + 1e6 if n == 2 else output):
        matrices = correlation_matrices(model, tokens, window=50)
    np.testing.assert_allclose(matrices[1].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_means_are_over_pairs_of_different_features_and_by_part(build_tiny_lm, tokens):
    model = build_tiny_lm("tied", rnn_cell="mmlstm", major_proportions="0.75").double()
    found = layer_correlations(model, tokens)
    for n, (layer, output, sizes) in enumerate(zip(found, outputs_of(model, tokens), [(9, 3), (6, 2)]), start=1):
        matrix, (major, minor) = np.abs(np.corrcoef(output.T)), sizes
        width = major + minor
        expected = {
            "major": matrix[:major, :major][~np.eye(major, dtype=bool)].mean(),
            "minor": matrix[major:, major:][~np.eye(minor, dtype=bool)].mean(),
        }
        assert (layer.layer, layer.width, layer.num_constant) == (n, width, 0)
        assert layer.mean == pytest.approx(matrix[~np.eye(width, dtype=bool)].mean(), rel=1e-9)
        assert layer.within == pytest.approx(expected, rel=1e-9)
        assert layer.between == pytest.approx(matrix[:major, major:].mean(), rel=1e-9)


def test_a_part_of_one_feature_has_no_pair(build_tiny_lm, tokens):
    model = build_tiny_lm("tied", rnn_cell="mmlstm", hidden_sizes="10 8", major_proportions="0.9 0.5")
    first, second = layer_correlations(model, tokens)
    assert first.within["minor"] is None and first.within["major"] is not None and second.within["minor"] is not None


def test_pairs_between_are_those_of_any_two_groups(build_tiny_lm, tokens, monkeypatch):
    groups = {"a": slice(0, 2), "b": slice(2, 5), "c": slice(5, 8)}
    monkeypatch.setattr(WeightDropLSTM, "feature_groups", groups)
    model = build_tiny_lm("tied", hidden_sizes="8").double()
    (layer,) = layer_correlations(model, tokens)
    matrix = np.abs(np.corrcoef(outputs_of(model, tokens)[0].T))
    group_of = np.repeat([0, 1, 2], [2, 3, 3])
    assert list(layer.within) == list(groups)
    assert layer.between == pytest.approx(matrix[group_of[:, None] != group_of].mean(), rel=1e-9)


def test_features_that_never_change_are_left_out_and_counted(build_tiny_lm, tokens):
    model = build_tiny_lm("tied").double()

    def hold(n, output):
        output = output.clone()
        output[..., :2] = 0.5
        return output

    with changed_layer_outputs(model, hold):
        found = layer_correlations(model, tokens)
        outputs = outputs_of(model, tokens)
    for layer, output in zip(found, outputs):
        matrix = np.abs(np.corrcoef(output[:, 2:].T))
        assert layer.num_constant == 2 and layer.within == {} and layer.between is None
        assert layer.mean == pytest.approx(matrix[~np.eye(len(matrix), dtype=bool)].mean(), rel=1e-9)
