"""Dropout, embedding and linear layers."""

import pytest
import torch
from torch import nn

from fairseq_plugins.modules.layers import (
    MASKS,
    WORD_MASKS,
    BroadcastDropout,
    Linear,
    WordDropoutEmbedding,
    dropout_mask,
)

B, T, D = 6, 5, 40


def make(rate, *, shared_dims=MASKS["locked"]):
    return BroadcastDropout(rate, flag="--dropout-input", shared_dims=shared_dims)


def test_evaluation_and_rate_zero_leave_the_input_alone():
    x = torch.randn(B, T, D)
    for dropout in (make(0.5).eval(), make(0.0)):
        assert torch.equal(dropout(x), x) and dropout.mask(x, x.shape) is None


@pytest.mark.parametrize("shared_dims, shape", [((), (B, T, D)), ((1,), (B, 1, D)), ((0, 1), (1, 1, D))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_is_what_a_call_multiplies_by(shared_dims, shape, dtype):
    dropout, x = make(0.5, shared_dims=shared_dims), torch.randn(B, T, D, dtype=dtype)
    torch.manual_seed(3)
    mask = dropout.mask(x, x.shape)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), x * mask)
    assert mask.shape == shape and mask.dtype == dtype


V, C = 200, 6

every_masks = pytest.mark.parametrize("word_masks", WORD_MASKS)


@pytest.fixture
def tokens():
    return torch.randint(V, (8, 30))


def make_embedding(rate, word_masks="window"):
    return WordDropoutEmbedding(V, C, word_dropout=rate, word_masks=word_masks)


def dropped_types(vectors, tokens):
    return tokens[vectors.eq(0).all(dim=-1)].unique()


@every_masks
def test_a_dropped_type_vanishes_at_all_its_places_and_the_others_are_scaled(word_masks):
    """In the window or in a row; each type is about three times in a row."""
    embedding, tokens = make_embedding(0.3, word_masks), torch.randint(20, (8, 60))
    vectors = embedding(tokens)
    parts = [(vectors, tokens)] if word_masks == "window" else list(zip(vectors, tokens))
    for found, types in parts:
        dropped = dropped_types(found, types)
        assert 0 < len(dropped) < 20
        gone = torch.isin(types, dropped)
        assert not found[gone].any()
        torch.testing.assert_close(found[~gone], embedding.weight[types[~gone]] / 0.7, rtol=1e-6, atol=0)


def test_every_row_drops_types_of_its_own():
    tokens = torch.arange(20).expand(50, 20)
    dropped = make_embedding(0.5, "row")(tokens).eq(0).all(dim=-1)
    assert len({tuple(row.tolist()) for row in dropped}) == 50
    together = dropped.double().T.corrcoef()  # of the types over the rows
    assert together.fill_diagonal_(0).abs().max() < 0.7
    window = make_embedding(0.5)(tokens).eq(0).all(dim=-1)
    assert torch.equal(window, window[:1].expand_as(window)) and window.any() and not window.all()


@every_masks
def test_embedding_a_mask_is_what_a_call_multiplies_by(word_masks, tokens):
    embedding = make_embedding(0.3, word_masks)
    torch.manual_seed(5)
    mask = embedding.mask(tokens)
    torch.manual_seed(5)
    assert mask.shape == (8, 30, 1)
    assert torch.equal(embedding(tokens), embedding.weight[tokens] * mask)


@every_masks
def test_every_call_draws_fresh_types(word_masks, tokens):
    embedding = make_embedding(0.3, word_masks)
    for row in zip(embedding(tokens), embedding(tokens), tokens):
        first, second = (dropped_types(vectors, row[-1]).tolist() for vectors in row[:2])
        assert first != second


@every_masks
def test_the_rate_is_the_share_of_dropped_types(word_masks):
    n, rate = 6400, 0.1
    embedding = WordDropoutEmbedding(n, 1, word_dropout=rate, word_masks=word_masks)
    tokens = torch.arange(n).view(64, 100) if word_masks == "window" else torch.arange(100).expand(64, 100)
    dropped = embedding.mask(tokens).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


@every_masks
@pytest.mark.parametrize("rate, training", [(0.0, True), (0.3, False)])
def test_evaluation_and_rates_of_zero_are_a_plain_look_up_that_draws_nothing(tokens, rate, training, word_masks):
    embedding = WordDropoutEmbedding(V, C, word_dropout=rate, word_masks=word_masks).train(training)
    before = torch.get_rng_state()
    assert torch.equal(embedding(tokens), embedding.weight[tokens])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)])
def test_values_and_gradients_are_those_of_torchs_layer(shape, bias):
    ours, plain = Linear(5, 7, bias=bias), nn.Linear(5, 7, bias=bias).double()
    plain.load_state_dict(ours.state_dict())
    x, results = torch.randn(shape, requires_grad=True), []
    for layer, layer_input in ((ours, x), (plain, x.double())):
        output = layer(layer_input)
        gradients = torch.autograd.grad(output.square().sum(), [layer_input, *layer.parameters()])
        results.append([part.double() for part in (output, *gradients)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_in_float64_there_is_a_second_derivative():
    layer, x = Linear(5, 7).double(), torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x)


# masks

N = 200_000


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.3, 0.5, 0.65, 0.999])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_are_zero_at_the_rate_and_else_what_keeps_the_mean(rate, dtype):
    mask = dropout_mask(torch.empty(0, dtype=dtype), [40, N // 40], rate=rate)
    assert mask.shape == (40, N // 40) and mask.dtype == dtype
    kept = torch.ones((), dtype=dtype) / (1 - rate)
    assert set(mask.unique().tolist()) == {kept.item(), *([0.0] if rate else [])}
    assert mask.eq(0).double().mean().item() == pytest.approx(rate, abs=4.5 * (rate * (1 - rate) / N) ** 0.5)


@pytest.mark.parametrize("lag", [1, 8, 64])
def test_neighbours_are_independent(lag):
    dropped = dropout_mask(torch.empty(0), [N], rate=0.3).eq(0)
    both = (dropped[lag:] & dropped[:-lag]).double().mean().item()
    assert both == pytest.approx(0.09, abs=5 * (0.09 * 0.91 / N) ** 0.5)


def test_a_seed_gives_one_mask_in_every_type_and_the_next_another():
    masks = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        torch.manual_seed(3)
        masks.append(dropout_mask(torch.empty(0, dtype=dtype), [500], rate=0.5).double())
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[0], masks[2])
    assert not torch.equal(dropout_mask(torch.empty(0), [500], rate=0.5).double(), masks[0])
