"""Attention against its formulas, position by position."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.attention import ATTENTIONS, Memory

B, T, S, H, M = 3, 4, 6, 5, 7
LENGTHS = [S, 1, 3]
WIDTHS = {"dot": (H, H), "general": (H, M), "mlp": (H, M)}
WEIGHTS = {
    "dot": {"combine.weight": (H, 2 * H)},
    "general": {"combine.weight": (H, H + M), "query.weight": (M, H)},
    "mlp": {"combine.weight": (H, H + M), "query.weight": (H, H), "key.weight": (H, M), "score.weight": (1, H)},
}

every_attention = pytest.mark.parametrize("name", sorted(ATTENTIONS))


def score_by_hand(name, weights, h, e):
    if name == "dot":
        return (h * e).sum()
    if name == "general":
        return (weights["query.weight"] @ h) @ e
    return weights["score.weight"][0] @ torch.tanh(weights["query.weight"] @ h + weights["key.weight"] @ e)


def by_hand(name, attention, query, annotations):
    """h~ (H) and the weights (S') of one query (H) over the annotations (S', M) of one sentence."""
    weights = attention.state_dict()
    a = plain_formulas.softmax(torch.stack([score_by_hand(name, weights, query, e) for e in annotations]))
    context = sum(a_i * e for a_i, e in zip(a, annotations))
    return torch.tanh(weights["combine.weight"] @ torch.cat([query, context])), a


def make(name, dtype=torch.float64, scale=0.7):
    attention = ATTENTIONS[name](*WIDTHS[name]).to(dtype)
    with torch.no_grad():
        for param in attention.parameters():
            param.uniform_(-scale, scale)
    return attention


def make_inputs(name, *, left=True, dtype=torch.float64):
    """Queries, annotations with garbage at padding, and where padding is."""
    width, memory_width = WIDTHS[name]
    padding = torch.arange(S) >= torch.tensor(LENGTHS).unsqueeze(1)
    padding = padding.flip(1) if left else padding
    annotations = torch.randn(B, S, memory_width, dtype=dtype)
    annotations[padding] *= 30
    return torch.randn(B, T, width, dtype=dtype), annotations, padding


def attend(attention, query, annotations, padding):
    return attention(query, Memory(annotations=annotations, keys=attention.keys(annotations), padding=padding))


def test_the_values_of_the_flag():
    assert sorted(ATTENTIONS) == sorted(WEIGHTS)


@every_attention
def test_the_matrices_are_those_of_the_formula_and_there_is_no_bias(name):
    assert {key: tuple(weight.shape) for key, weight in make(name).state_dict().items()} == WEIGHTS[name]


@every_attention
@pytest.mark.parametrize("left", [True, False])
def test_output_and_weights_are_those_of_the_sentence_alone(name, left):
    attention = make(name)
    query, annotations, padding = make_inputs(name, left=left)
    output, weights = attend(attention, query, annotations, padding)
    assert output.shape == query.shape and weights.shape == (B, T, S)
    for b in range(B):
        for t in range(T):
            expected, a = by_hand(name, attention, query[b, t], annotations[b, ~padding[b]])
            torch.testing.assert_close(output[b, t], expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(weights[b, t, ~padding[b]], a, rtol=1e-12, atol=1e-12)


@every_attention
def test_padding_gets_no_weight_and_no_gradient(name):
    attention = make(name)
    query, annotations, padding = make_inputs(name)
    output, weights = attend(attention, query, annotations.requires_grad_(), padding)
    assert torch.equal(weights == 0, padding.unsqueeze(1).expand_as(weights))
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, T).double(), rtol=0, atol=1e-12)
    output.pow(2).sum().backward()
    assert annotations.grad.isfinite().all() and not annotations.grad[padding].any()


@every_attention
def test_without_padding_none_is_the_same_as_a_mask_of_nothing(name):
    attention = make(name)
    query, annotations, _ = make_inputs(name)
    masked = attend(attention, query, annotations, torch.zeros(B, S, dtype=torch.bool))
    torch.testing.assert_close(attend(attention, query, annotations, None), masked, rtol=0, atol=0)


@every_attention
def test_one_query_at_a_time_is_all_at_once(name):
    attention = make(name)
    query, annotations, padding = make_inputs(name)
    steps = [attend(attention, query[:, t : t + 1], annotations, padding) for t in range(T)]
    together = attend(attention, query, annotations, padding)
    for found, expected in zip(zip(*steps), together):
        torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-12, atol=1e-12)


@every_attention
def test_gradients_reach_every_parameter(name):
    attention = make(name)
    output, _ = attend(attention, *make_inputs(name))
    output.pow(2).sum().backward()
    assert [key for key, param in attention.named_parameters() if not param.grad.abs().sum() > 0] == []


@every_attention
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_near_double(name, dtype):
    attention = make(name, dtype)
    query, annotations, padding = make_inputs(name, dtype=dtype)
    annotations[padding] = 0  # as the encoder leaves it
    output, weights = attend(attention, query, annotations, padding)
    assert output.dtype == dtype and weights.dtype == torch.float32
    tolerance = 16 * torch.finfo(dtype).eps
    expected = attend(attention.double(), query.double(), annotations.double(), padding)
    torch.testing.assert_close((output.double(), weights.double()), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(weights.double().sum(-1), torch.ones(B, T).double(), rtol=0, atol=tolerance)


@every_attention
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_scores_and_padding_bring_no_nan_in_half_precision(name, dtype):
    attention = make(name, dtype, scale=30)
    query, annotations, padding = make_inputs(name, dtype=dtype)
    annotations[padding] /= 30
    output, weights = attend(attention, 10 * query, annotations.requires_grad_(), padding)
    output.float().pow(2).sum().backward()
    assert weights.max() > 0.99
    assert all(x.isfinite().all() for x in (output, weights, annotations.grad))
    assert all(param.grad.isfinite().all() for param in attention.parameters())


def test_dot_needs_equal_widths():
    with pytest.raises(AssertionError):
        ATTENTIONS["dot"](5, 7)
