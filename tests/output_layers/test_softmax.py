"""One softmax, with the embedding or with a matrix of its own."""

import pytest
import torch
import torch.nn.functional as F
from builders import build_output_layer, make_states
from torch import nn

WIDTHS = [7, 9, 7]
V = 123


@pytest.fixture
def embedding():
    return nn.Parameter(torch.randn(V, WIDTHS[0], dtype=torch.float64))


def build(name, embedding, widths=WIDTHS):
    return build_output_layer(name, widths=widths, vocab_size=V, shared_weight=embedding).double()


def logits_by_hand(layer, states, embedding):
    weight = embedding if layer.name == "tied" else layer.projection.weight
    return states.layers[-1] @ weight.T + layer.projection.bias


@pytest.mark.parametrize("name", ["tied", "full"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_the_librarys_cross_entropy(name, label_smoothing, embedding):
    layer = build(name, embedding)
    states, target = make_states(WIDTHS, dtype=torch.float64), torch.randint(V, (3, 4))
    nn.init.uniform_(layer.projection.bias)
    scores = layer(states, target, label_smoothing=label_smoothing)
    logits = logits_by_hand(layer, states, embedding)
    expected = F.cross_entropy(logits.movedim(-1, 1), target, reduction="none", label_smoothing=label_smoothing)
    torch.testing.assert_close(scores.loss, expected.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        scores.nll, F.cross_entropy(logits.movedim(-1, 1), target, reduction="none").detach(), rtol=1e-12, atol=1e-12
    )
    params = list(layer.parameters())
    ours, theirs = torch.autograd.grad(scores.loss, params), torch.autograd.grad(expected.sum(), params)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["tied", "full"])
def test_log_probs(name, embedding):
    layer, states = build(name, embedding), make_states(WIDTHS, dtype=torch.float64)
    expected = torch.from_numpy(logits_by_hand(layer, states, embedding).detach().numpy())
    expected = expected - expected.exp().sum(-1, keepdim=True).log()
    torch.testing.assert_close(layer(states).log_probs.detach(), expected, rtol=1e-12, atol=1e-12)


def test_a_tied_layer_owns_the_bias_only(embedding):
    layer = build("tied", embedding)
    assert layer.projection.weight is embedding
    assert sum(p.numel() for p in layer.parameters()) - embedding.numel() == V


def test_a_full_layer_has_a_matrix_as_wide_as_the_last_layer(embedding):
    layer = build("full", embedding, widths=[7, 9, 11])
    assert layer.projection.weight.shape == (V, 11)
    assert layer.projection.weight is not embedding


def test_an_own_matrix_starts_like_an_embedding_and_the_bias_at_zero(embedding):
    projection = build("full", embedding, widths=[7, 200]).projection
    assert 0.0999 < projection.weight.abs().max().item() <= 0.1
    assert torch.equal(projection.bias, torch.zeros_like(projection.bias))


def test_tying_needs_equal_widths(embedding):
    with pytest.raises(ValueError, match="9 features.*7 wide: give .*--hidden-sizes.*--decoder-output-dim"):
        build("tied", embedding, widths=[7, 9])


def test_tying_needs_an_embedding():
    with pytest.raises(AssertionError):
        build_output_layer("tied", widths=WIDTHS, vocab_size=V, has_shared_weight=False)


def test_the_matrix_has_rank_at_most_d_plus_2(embedding):
    states = make_states(WIDTHS, num_rows=10, num_steps=10, dtype=torch.float64)
    log_probs = build("tied", embedding)(states).log_probs.flatten(0, 1)
    assert torch.linalg.matrix_rank(log_probs).item() <= WIDTHS[-1] + 2
