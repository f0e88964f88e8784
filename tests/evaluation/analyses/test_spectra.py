"""Eigenvalues of recurrent matrices against matrices whose own are known."""

import math

import pytest
import torch
from builders import build_tiny_lm

from fairseq_plugins.evaluation.analyses.spectra import spectra
from fairseq_plugins.reports.spectra import draw_spectra, spectrum_table


def model_of(matrix):
    """A rectifier network of one layer with this matrix."""
    model = build_tiny_lm("full", rnn_cell="rectifier", hidden_sizes=str(len(matrix))).double()
    (layer,) = model.decoder.stack.layers
    with torch.no_grad():
        layer.recurrent.weight.copy_(matrix)
    return model


def test_the_large_negative_eigenvalue_is_named_with_its_eigenvectors():
    """R = S diag(2, 0.5, -4, a rotation) S^-1 with a right eigenvector of one sign, whose left one has two."""
    basis = torch.eye(5, dtype=torch.float64)
    basis[:, 2] = torch.tensor([0.3, 0.2, 1.0, 0.4, 0.1])
    blocks = torch.diag(torch.tensor([2.0, 0.5, -4.0, 0.0, 0.0], dtype=torch.float64))
    blocks[3, 4], blocks[4, 3] = -0.9, 0.9
    (found,) = spectra(model_of(basis @ blocks @ basis.inverse()), "model.pt")
    moduli = found.eigenvalues.abs().tolist()
    assert moduli == pytest.approx([4, 2, 0.9, 0.9, 0.5])
    assert found.most_negative == pytest.approx(-4) and found.num_growing == 2
    left = torch.linalg.inv(basis)[2]
    signs = sorted([sum(left > 1e-9).item(), sum(left < -1e-9).item()])
    assert signs == [0, 1]  # the rest of its entries are zero
    assert found.same_sign == [1.0, 0.2]
    assert "-4.000" in spectrum_table({"RNN": [found]})
    assert [text.get_text() for text in draw_spectra({"RNN": [found]}).axes[0].texts] == ["-4.00"]


@pytest.mark.parametrize("matrix", [[[0.0, -1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.5]]])
def test_without_a_negative_eigenvalue_none_is_named(matrix):
    (found,) = spectra(model_of(torch.tensor(matrix)), "model.pt")
    assert math.isnan(found.most_negative) and "none" in spectrum_table({"RNN": [found]})


def test_the_least_of_several_negative_eigenvalues_is_named():
    (found,) = spectra(model_of(torch.diag(torch.tensor([-0.5, 1.0, -3.0, -2.0]))), "model.pt")
    assert found.most_negative == -3 and found.same_sign == [0.25, 0.25]


def test_an_eigenvalue_on_the_unit_circle_does_not_grow():
    (found,) = spectra(model_of(torch.diag(torch.tensor([1.0, -1.0, 1.5]))), "model.pt")
    assert found.num_growing == 1


@pytest.mark.parametrize("cell", ["lstm", "diagonal"])
def test_layers_without_a_matrix_of_their_own_are_refused(cell):
    with pytest.raises(ValueError, match="model.pt: layer 1 has no recurrent matrix without gates"):
        spectra(build_tiny_lm("full", rnn_cell=cell), "model.pt")
