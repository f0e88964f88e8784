"""Embedding whose words are dropped by type, in a window or in each row."""

import pytest
import torch

from fairseq_plugins.modules.embedding import WORD_MASKS, WordDropoutEmbedding

V, C = 200, 6

every_masks = pytest.mark.parametrize("word_masks", WORD_MASKS)


@pytest.fixture
def tokens():
    return torch.randint(V, (8, 30))


def make(rate, word_masks="window"):
    return WordDropoutEmbedding(V, C, word_dropout=rate, word_masks=word_masks)


def dropped_types(vectors, tokens):
    return set(tokens[vectors.eq(0).all(dim=-1)].tolist())


def dropped_types_of_rows(vectors, tokens):
    return [dropped_types(*row) for row in zip(vectors, tokens)]


def assert_types_are_dropped(embedding, vectors, tokens, dropped, rate):
    gone = torch.isin(tokens, torch.tensor(sorted(dropped), dtype=torch.long))
    assert torch.equal(vectors[gone], torch.zeros_like(vectors[gone]))
    torch.testing.assert_close(vectors[~gone], embedding.weight[tokens[~gone]] / (1 - rate), rtol=1e-6, atol=0)


def test_a_dropped_type_vanishes_at_all_positions_of_a_window_and_the_others_are_scaled(tokens):
    embedding = make(0.3)
    vectors = embedding(tokens)
    dropped = dropped_types(vectors, tokens)
    assert 0 < len(dropped) < len(tokens.unique())
    assert_types_are_dropped(embedding, vectors, tokens, dropped, 0.3)


def test_a_dropped_type_of_a_row_vanishes_at_all_its_places_there_and_the_others_are_scaled():
    embedding, tokens = make(0.3, "row"), torch.randint(10, (8, 30))  # each type about three times a row
    vectors = embedding(tokens)
    for row, dropped in enumerate(dropped_types_of_rows(vectors, tokens)):
        assert len(dropped) < 10
        assert_types_are_dropped(embedding, vectors[row], tokens[row], dropped, 0.3)


def test_every_row_drops_types_of_its_own():
    tokens = torch.arange(20).expand(50, 20)
    dropped = make(0.5, "row")(tokens).eq(0).all(dim=-1)
    assert len({tuple(row.tolist()) for row in dropped}) == 50
    together = dropped.double().T.corrcoef()  # of the types over the rows
    assert together.fill_diagonal_(0).abs().max() < 0.7
    window = make(0.5)(tokens).eq(0).all(dim=-1)
    assert torch.equal(window, window[:1].expand_as(window)) and window.any() and not window.all()


@every_masks
def test_a_mask_is_what_a_call_multiplies_by(word_masks, tokens):
    embedding = make(0.3, word_masks)
    torch.manual_seed(5)
    mask = embedding.mask(tokens)
    torch.manual_seed(5)
    assert mask.shape == (8, 30, 1)
    assert torch.equal(embedding(tokens), embedding.weight[tokens] * mask)


@every_masks
def test_every_call_draws_fresh_types(word_masks, tokens):
    embedding = make(0.3, word_masks)
    first, second = (dropped_types_of_rows(embedding(tokens), tokens) for _ in range(2))
    assert all(a != b for a, b in zip(first, second))


@pytest.mark.parametrize("rate", [0.1, 0.3])
@every_masks
def test_the_rate_is_the_share_of_dropped_types(word_masks, rate):
    n = 6400
    embedding = WordDropoutEmbedding(n, 1, word_dropout=rate, word_masks=word_masks)
    tokens = torch.arange(n).view(64, 100) if word_masks == "window" else torch.arange(100).expand(64, 100)
    dropped = embedding.mask(tokens).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


def test_repeated_types_do_not_change_the_rate():
    tokens = torch.randint(7, (4000, 35))
    mask = make(0.3, "row").mask(tokens).squeeze(-1)
    n = sum(len(row.unique()) for row in tokens)
    dropped = sum(len(row[gone].unique()) for row, gone in zip(tokens, mask.eq(0)))
    assert dropped / n == pytest.approx(0.3, abs=4 * (0.21 / n) ** 0.5)


@every_masks
@pytest.mark.parametrize("rate, training", [(0.3, False), (0.0, True)])
def test_evaluation_and_rate_zero_are_a_plain_look_up(tokens, rate, training, word_masks):
    embedding = make(rate, word_masks).train(training)
    assert torch.equal(embedding(tokens), embedding.weight[tokens])


@every_masks
def test_the_matrix_itself_is_not_masked(word_masks, tokens):
    embedding = make(0.9, word_masks)
    before = embedding.weight.detach().clone()
    embedding(tokens)
    assert torch.equal(embedding.weight, before)


@every_masks
def test_gradients_reach_the_kept_words_only(word_masks, tokens):
    embedding = make(0.3, word_masks)
    vectors = embedding(tokens)
    vectors.sum().backward()
    kept = vectors.ne(0).any(dim=-1)
    assert 0 < kept.sum() < kept.numel()
    counts = torch.bincount(tokens[kept], minlength=V).double()
    torch.testing.assert_close(embedding.weight.grad.double(), (counts / 0.7)[:, None].expand(V, C))


def test_vectors_start_uniform_within_a_tenth():
    weight = WordDropoutEmbedding(2000, 50).weight.detach()
    assert -0.1 <= weight.min() < -0.0999 and 0.0999 < weight.max() <= 0.1
    assert weight.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.01)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="--dropout-embedding"):
        make(rate)


# noise


def test_training_adds_noise_of_the_stated_deviation_to_every_feature():
    embedding = WordDropoutEmbedding(5, 400, noise=0.15)
    tokens = torch.tensor([[1, 1, 2], [1, 3, 0]])
    noise = (embedding(tokens) - embedding.weight[tokens]).detach()
    n = noise.numel()
    assert noise.mean().item() == pytest.approx(0, abs=4 * 0.15 / n**0.5)
    assert noise.std().item() == pytest.approx(0.15, rel=4 / (2 * n) ** 0.5)
    same_word = torch.corrcoef(torch.stack([noise[0, 0], noise[0, 1], noise[1, 0]]))
    assert (same_word - torch.eye(3)).abs().max() < 4 / 400**0.5


def test_noise_is_added_after_words_are_dropped(tokens):
    torch.manual_seed(1)
    dropped = WordDropoutEmbedding(V, C, word_dropout=0.5)
    noisy = WordDropoutEmbedding(V, C, word_dropout=0.5, noise=1e-3)
    noisy.load_state_dict(dropped.state_dict())
    results = []
    for embedding in (dropped, noisy):
        torch.manual_seed(2)
        results.append(embedding(tokens))
    assert results[0].eq(0).any() and results[1].ne(0).all()
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=6e-3)


@pytest.mark.parametrize("noise, training", [(0.0, True), (0.15, False)])
def test_no_noise_is_a_plain_look_up_that_draws_nothing(tokens, noise, training):
    embedding = WordDropoutEmbedding(V, C, noise=noise).train(training)
    before = torch.get_rng_state()
    assert torch.equal(embedding(tokens), embedding.weight[tokens])
    assert torch.equal(torch.get_rng_state(), before)


def test_negative_noise_is_refused():
    with pytest.raises(ValueError, match="--embedding-noise -0.1: give 0 or more"):
        WordDropoutEmbedding(V, C, noise=-0.1)
