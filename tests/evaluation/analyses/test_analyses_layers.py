"""Analyses of layers: mixtures, masks, spectra, timescales and correlations."""

import math
import re

import numpy as np
import plain_formulas
import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm
from printed_tables import rows_of
from torch.nn.functional import linear, log_softmax, softmax

from fairseq_plugins.evaluation.analyses.layers import (
    LAYER_MASKS,
    changed_layer_outputs,
    correlation_matrices,
    layer_correlations,
    layer_learning,
    masked_perplexity,
    masking_curves,
    recurrent_stack,
    spectra,
    timescales,
)
from fairseq_plugins.evaluation.scoring import evaluate_perplexity, score_lines, score_pairs
from fairseq_plugins.modules.lstm import WeightDropLSTM
from fairseq_plugins.reports.analyses import spectrum_report, timescale_report

END = 2


def learning_by_hand(model, targets, sources=()):
    """Means over words of experts' priors and of gradients of layers, with P = sum_j pi_j softmax(E k_j + b)."""
    output, width = model.decoder.output, model.decoder.output.latent_width
    shares, norms = [], []
    for number, target in enumerate(targets):
        source = [sources[number][None], torch.tensor([len(sources[number])])] if sources else []
        states = model(*source, target.roll(1)[None])[1]["states"]
        for t, word in enumerate(target.tolist()):
            layers = [layer[0, t].detach().requires_grad_() for layer in states.layers]
            prior = softmax(linear(layers[-1], output.prior.weight), dim=-1)
            latents = []
            for n, matrix in zip(output.source_layers, output.latent_projections):
                latents += list(torch.tanh(linear(layers[n], matrix.weight, matrix.bias)).split(width))
            logits = linear(torch.stack(latents), output.projection.weight, output.projection.bias)
            nll = -torch.log((prior * log_softmax(logits, dim=-1)[:, word].exp()).sum())
            gradients = torch.autograd.grad(nll, layers, materialize_grads=True)
            norms.append(torch.stack([gradient.norm() for gradient in gradients]))
            shares.append(prior.detach())
    return torch.stack(shares).mean(0).tolist(), torch.stack(norms).mean(0).tolist()


def test_layers_of_several_models_are_not_looked_into():
    gated = build_tiny_gated_lm("tied")
    assert recurrent_stack(gated) is gated.decoder.members[0].stack
    with pytest.raises(ValueError, match="^the gated model has 2 base models: look into the layers of one alone"):
        recurrent_stack(build_tiny_gated_lm("tied", "doc"))


def test_a_language_model_by_lines():
    model = build_tiny_lm("doc", experts_per_layer="0 2 1", dropout_hidden=0.5, latent_dropout=0.5).double().train()
    lines = [torch.tensor([7, 11, 3, END]), torch.tensor([5, END])]
    found = layer_learning(model, score_lines(model, lines))
    shares, gradients = learning_by_hand(model, lines)
    assert found.num_words == 6
    assert found.shares == pytest.approx([0, shares[0] + shares[1], shares[2]])
    assert found.gradients == pytest.approx(gradients, rel=1e-5)
    assert found.gradients[0] == 0 and found.gradients[1] > 0


def test_an_encoder_decoder_by_pairs(doc_translator):
    model = doc_translator.eval()
    sources = [torch.tensor([5, 6, END]), torch.tensor([7, END])]
    targets = [torch.tensor([9, END]), torch.tensor([4, 5, 6, 7, END])]
    found = layer_learning(model, score_pairs(model, sources, targets))
    shares, gradients = learning_by_hand(model, targets, sources)
    assert found.num_words == 7
    assert found.shares[-2:] == pytest.approx([shares[0], shares[1] + shares[2]])
    assert found.gradients == pytest.approx(gradients, rel=1e-5)


def test_an_empty_text_is_told():
    with pytest.raises(ValueError, match="there is no sentence that has a word"):
        layer_learning(build_tiny_lm("doc"), [])


every_mask = pytest.mark.parametrize("kind", LAYER_MASKS)


@pytest.fixture
def model():
    return build_tiny_lm("tied", dropout_output=0.5, dropout_hidden=0.5).double()


def perplexity(model, tokens, layers, probability, kind="element", seed=1, **options):
    masks = dict(layers=layers, probability=probability, kind=kind)
    return masked_perplexity(model, tokens, seed=seed, **masks, **options)


@every_mask
@pytest.mark.parametrize("layers, probability, cell", [([1], 0.3, "lstm"), ([2], 1.0, "lstm"), ([1, 2], 0.3, "rhn")])
def test_masked_perplexity_is_that_of_the_equations_with_the_masks(layers, probability, cell, kind, tokens):
    model = build_tiny_lm("tied", rnn_cell=cell).double()
    seed = 5
    generator, e = torch.Generator().manual_seed(seed), model.decoder.embedding.weight[tokens[None, :-1]]
    x = e
    for n, layer in enumerate(model.decoder.stack.layers, start=1):
        x, _ = plain_formulas.recurrent(layer, x, layer.initial_state(x), e)
        if n in layers:
            num_steps = x.size(1) if kind == "element" else 1
            x = x * torch.empty(1, num_steps, x.size(2)).bernoulli_(1 - probability, generator=generator)
    probs = plain_formulas.output_probs(model.decoder.output, [e, x, x]).gather(-1, tokens[None, 1:, None])
    found = perplexity(model, tokens, layers, probability, kind, seed)
    assert found == pytest.approx(math.exp(-probs.log().mean().item()), rel=1e-10)


@every_mask
def test_nothing_masked_is_the_plain_perplexity(kind, model, tokens):
    expected = evaluate_perplexity([model], tokens).perplexity
    assert perplexity(model, tokens, [1, 2], 0.0, kind) == expected


def test_without_a_mask_there_is_one_run(tokens):
    models = {"LM": build_tiny_lm("tied", hidden_sizes="8")}
    curves = masking_curves(models, tokens, probabilities=[0, 0.5], kind="element", num_runs=3)
    assert [len(runs.perplexities) for runs in curves] == [1, 3]


def test_a_locked_mask_stays_from_window_to_window(model, tokens):
    whole, windows = (perplexity(model, tokens, [1, 2], 0.3, "locked", window=window) for window in (1000, 7))
    assert windows == pytest.approx(whole, rel=1e-10)


def test_afterwards_the_model_is_as_it_was_even_after_an_error(model, tokens):
    expected = evaluate_perplexity([model], tokens).perplexity
    perplexity(model, tokens, [1, 2], 0.3)
    with pytest.raises(RuntimeError, match="stop"), changed_layer_outputs(model, lambda n, output: output * 0):
        raise RuntimeError("stop")
    assert evaluate_perplexity([model], tokens).perplexity == expected


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
    (found,) = spectra(model_of(basis @ blocks @ basis.inverse()))
    moduli = found.eigenvalues.abs().tolist()
    assert moduli == pytest.approx([4, 2, 0.9, 0.9, 0.5])
    assert found.most_negative == pytest.approx(-4)
    assert rows_of(spectrum_report({"RNN": [found]}).text)[-1][3] == "2"
    assert found.same_sign == [1.0, 0.2]  # one entry of the left eigenvector is not zero
    assert "-4.000" in spectrum_report({"RNN": [found]}).text
    assert [text.get_text() for text in spectrum_report({"RNN": [found]}).draw().axes[0].texts] == ["-4.00"]


@pytest.mark.parametrize("matrix", [[[0.0, -1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.5]]])
def test_without_a_negative_eigenvalue_none_is_named(matrix):
    (found,) = spectra(model_of(torch.tensor(matrix)))
    assert math.isnan(found.most_negative) and "none" in spectrum_report({"RNN": [found]}).text


def test_the_least_of_several_negative_eigenvalues_is_named_and_one_on_the_unit_circle_does_not_grow():
    (found,) = spectra(model_of(torch.diag(torch.tensor([-0.5, 1.0, -3.0, -1.0]))))
    assert found.most_negative == -3 and found.same_sign == [0.25, 0.25]
    assert rows_of(spectrum_report({"RNN": [found]}).text)[-1][3] == "1"


@pytest.mark.parametrize("cell", ["lstm", "diagonal"])
def test_layers_without_a_matrix_of_their_own_are_refused(cell):
    with pytest.raises(ValueError, match="^layer 1 has no recurrent matrix without gates"):
        spectra(build_tiny_lm("full", rnn_cell=cell))


def model_with(connections):
    """A diagonal network of one layer with these self-connections."""
    width = str(len(connections))
    model = build_tiny_lm("full", rnn_cell="diagonal", hidden_sizes=width).double()
    (layer,) = model.decoder.stack.layers
    with torch.no_grad():
        layer.connection_bias.copy_(torch.atanh(torch.tensor(connections).double()) - layer.connection_offset)
    return model


def test_timescales_are_those_of_the_self_connections():
    (found,) = timescales(model_with([math.exp(-1 / 7), 0.0, -0.5, math.exp(-2.0), 1.0]))
    assert found.values == pytest.approx([7, 0.5])
    assert (found.layer, found.num_alternating, found.num_without) == (1, 1, 2)
    assert re.search(r"7\.00 \| +3\.75 \|", timescale_report({"FPNN": [found]}).text)
    (line,) = timescale_report({"FPNN": [found]}).draw().axes[0].get_lines()
    assert line.get_xdata().tolist() == [1, 2] and line.get_ydata() == pytest.approx([7, 0.5])
    assert line.get_label() == "FPNN: 2 of 5 units"


@pytest.mark.parametrize("flags", [{"rnn_cell": "lstm"}, {"rnn_cell": "diagonal", "transition": "full"}])
def test_layers_without_self_connections_are_refused(flags):
    with pytest.raises(ValueError, match="^layer 1 has no self-connections"):
        timescales(build_tiny_lm("full", **flags))


@pytest.fixture
def stream():
    return torch.randint(23, (301,))


def outputs_of(model, stream):
    model.eval()
    with torch.no_grad():
        return [layer[0].numpy() for layer in model(stream[None, :-1])[1]["states"].layers[1:]]


@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
def test_matrices_are_those_of_all_outputs_at_once(window, cell, stream):
    model = build_tiny_lm("tied", rnn_cell=cell, dropout_hidden=0.5, dropout_output=0.5).double()
    matrices = correlation_matrices(model, stream, window=window)
    for matrix, output in zip(matrices, outputs_of(model, stream), strict=True):
        np.testing.assert_allclose(matrix.numpy(), np.corrcoef(output.T), rtol=1e-9, atol=1e-12)


def test_features_far_from_zero_lose_no_digits(stream):
    model = build_tiny_lm("tied").double()
    expected = np.corrcoef(outputs_of(model, stream)[1].T)
    with changed_layer_outputs(model, lambda n, output: output + 1e6 if n == 2 else output):
        matrices = correlation_matrices(model, stream, window=50)
    np.testing.assert_allclose(matrices[1].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_means_are_over_pairs_of_different_features_and_by_part(stream):
    model = build_tiny_lm("tied", rnn_cell="mmlstm", major_proportions="0.75").double()
    found = layer_correlations(model, stream)
    for n, (layer, output, sizes) in enumerate(zip(found, outputs_of(model, stream), [(9, 3), (6, 2)]), start=1):
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


def test_a_part_of_one_feature_has_no_pair(stream):
    model = build_tiny_lm("tied", rnn_cell="mmlstm", hidden_sizes="10 8", major_proportions="0.9 0.5")
    first, second = layer_correlations(model, stream)
    assert first.within["minor"] is None and first.within["major"] is not None and second.within["minor"] is not None


def test_pairs_between_are_those_of_any_two_groups(stream, monkeypatch):
    groups = {"a": slice(0, 2), "b": slice(2, 5), "c": slice(5, 8)}
    monkeypatch.setattr(WeightDropLSTM, "feature_groups", groups)
    model = build_tiny_lm("tied", hidden_sizes="8").double()
    (layer,) = layer_correlations(model, stream)
    matrix = np.abs(np.corrcoef(outputs_of(model, stream)[0].T))
    group_of = np.repeat([0, 1, 2], [2, 3, 3])
    assert list(layer.within) == list(groups)
    assert layer.between == pytest.approx(matrix[group_of[:, None] != group_of].mean(), rel=1e-9)


def test_features_that_never_change_are_left_out_and_counted(stream):
    model = build_tiny_lm("tied").double()

    def hold(n, output):
        output = output.clone()
        output[..., :2] = 0.5
        return output

    with changed_layer_outputs(model, hold):
        found = layer_correlations(model, stream)
        outputs = outputs_of(model, stream)
    for layer, output in zip(found, outputs):
        matrix = np.abs(np.corrcoef(output[:, 2:].T))
        assert layer.num_constant == 2 and layer.within == {} and layer.between is None
        assert layer.mean == pytest.approx(matrix[~np.eye(len(matrix), dtype=bool)].mean(), rel=1e-9)
