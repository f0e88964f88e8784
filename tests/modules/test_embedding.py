"""Embedding whose rows are dropped by word type."""

import pytest
import torch

from fairseq_plugins.modules.embedding import RowDropoutEmbedding

V, C = 200, 6


@pytest.fixture
def tokens():
    return torch.randint(V, (8, 30))


def dropped_types(vectors, tokens):
    return set(tokens[vectors.eq(0).all(dim=-1)].tolist())


def test_a_dropped_type_vanishes_at_all_positions_and_the_others_are_scaled(tokens):
    embedding = RowDropoutEmbedding(V, C, row_dropout=0.3)
    vectors = embedding(tokens)
    dropped = dropped_types(vectors, tokens)
    assert 0 < len(dropped) < len(tokens.unique())
    gone = torch.isin(tokens, torch.tensor(sorted(dropped)))
    assert torch.equal(vectors[gone], torch.zeros_like(vectors[gone]))
    torch.testing.assert_close(vectors[~gone], embedding.weight[tokens[~gone]] / 0.7, rtol=1e-6, atol=0)


def test_every_call_draws_fresh_types(tokens):
    embedding = RowDropoutEmbedding(V, C, row_dropout=0.3)
    assert dropped_types(embedding(tokens), tokens) != dropped_types(embedding(tokens), tokens)


def test_the_rate_is_the_share_of_dropped_types():
    n = 50_000
    mask = RowDropoutEmbedding(n, 1, row_dropout=0.1).row_mask()
    assert mask.shape == (n, 1)
    assert mask.eq(0).double().mean().item() == pytest.approx(0.1, abs=4 * (0.09 / n) ** 0.5)


@pytest.mark.parametrize("rate, training", [(0.3, False), (0.0, True)])
def test_evaluation_and_rate_zero_are_a_plain_look_up(tokens, rate, training):
    embedding = RowDropoutEmbedding(V, C, row_dropout=rate).train(training)
    assert torch.equal(embedding(tokens), embedding.weight[tokens])


def test_the_matrix_itself_is_not_masked(tokens):
    embedding = RowDropoutEmbedding(V, C, row_dropout=0.9)
    before = embedding.weight.detach().clone()
    embedding(tokens)
    assert torch.equal(embedding.weight, before)


def test_gradients_reach_the_kept_rows_only(tokens):
    embedding = RowDropoutEmbedding(V, C, row_dropout=0.3)
    vectors = embedding(tokens)
    vectors.sum().backward()
    counts = torch.bincount(tokens.flatten(), minlength=V).double()
    counts[sorted(dropped_types(vectors, tokens))] = 0
    torch.testing.assert_close(embedding.weight.grad.double(), (counts / 0.7)[:, None].expand(V, C))


def test_rows_start_uniform_within_a_tenth():
    weight = RowDropoutEmbedding(2000, 50).weight.detach()
    assert -0.1 <= weight.min() < -0.0999 and 0.0999 < weight.max() <= 0.1
    assert weight.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.01)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="--dropout-embedding"):
        RowDropoutEmbedding(V, C, row_dropout=rate)
