"""Which positions share a locked dropout mask."""

import pytest
import torch

from fairseq_plugins.modules.dropout import BroadcastDropout

B, T, D = 6, 5, 40


def test_kept_values_are_scaled():
    out = BroadcastDropout(0.4)(torch.ones(B, T, D))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}


def test_the_mask_is_shared_over_time():
    out = BroadcastDropout(0.5)(torch.ones(B, T, D))
    assert torch.equal(out, out[:, :1].expand_as(out))


def test_rows_and_features_have_masks_of_their_own():
    mask = BroadcastDropout(0.5)(torch.ones(B, T, D))[:, 0]
    assert len({tuple(row.tolist()) for row in mask}) == B
    assert len({tuple(column.tolist()) for column in mask.T}) > 20


def test_every_call_draws_a_fresh_mask():
    dropout, x = BroadcastDropout(0.5), torch.ones(B, T, D)
    assert not torch.equal(dropout(x), dropout(x))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.65])
def test_the_rate_is_the_share_of_dropped_values(rate):
    n = 100_000
    dropped = BroadcastDropout(rate)(torch.ones(1, 1, n)).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


def test_evaluation_and_rate_zero_leave_the_input_alone():
    x = torch.randn(B, T, D)
    assert torch.equal(BroadcastDropout(0.5).eval()(x), x)
    assert torch.equal(BroadcastDropout(0.0)(x), x)


@pytest.mark.parametrize("shared_dims, num_masks", [((1,), B * 3), ((1, 2), B)])
def test_the_mask_of_latent_vectors_is_shared_or_per_expert(shared_dims, num_masks):
    out = BroadcastDropout(0.5, shared_dims=shared_dims)(torch.ones(B, T, 3, D))
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert len({tuple(mask.tolist()) for mask in out[:, 0].flatten(0, 1)}) == num_masks


def test_the_gradient_passes_through_the_mask():
    x = torch.randn(B, T, D, requires_grad=True)
    out = BroadcastDropout(0.5)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), out.detach())


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="dropout"):
        BroadcastDropout(rate)
