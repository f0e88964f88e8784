"""Which positions share a dropout mask."""

import pytest
import torch

from fairseq_plugins.modules.dropout import MASKS, BroadcastDropout

B, T, D = 6, 5, 40


def make(rate, *, shared_dims=MASKS["locked"]):
    return BroadcastDropout(rate, flag="--dropout-input", shared_dims=shared_dims)


def test_kept_values_are_scaled():
    out = make(0.4)(torch.ones(B, T, D))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}


def test_a_locked_mask_is_shared_over_time():
    out = make(0.5)(torch.ones(B, T, D))
    assert torch.equal(out, out[:, :1].expand_as(out))


def test_a_standard_mask_is_not_shared():
    out = make(0.5, shared_dims=MASKS["standard"])(torch.ones(B, T, D))
    assert len({tuple(step.tolist()) for step in out.flatten(0, 1)}) == B * T


def test_rows_and_features_have_masks_of_their_own():
    mask = make(0.5)(torch.ones(B, T, D))[:, 0]
    assert len({tuple(row.tolist()) for row in mask}) == B
    assert len({tuple(column.tolist()) for column in mask.T}) > 20


@pytest.mark.parametrize("masks", sorted(MASKS))
def test_every_call_draws_a_fresh_mask(masks):
    dropout, x = make(0.5, shared_dims=MASKS[masks]), torch.ones(B, T, D)
    assert not torch.equal(dropout(x), dropout(x))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.65])
def test_the_rate_is_the_share_of_dropped_values(rate):
    n = 100_000
    dropped = make(rate)(torch.ones(1, 1, n)).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


def test_evaluation_and_rate_zero_leave_the_input_alone():
    x = torch.randn(B, T, D)
    for dropout in (make(0.5).eval(), make(0.0)):
        assert torch.equal(dropout(x), x) and dropout.mask(x, x.shape) is None


@pytest.mark.parametrize("shared_dims, num_masks", [((1,), B * 3), ((1, 2), B)])
def test_the_mask_of_latent_vectors_is_shared_or_per_expert(shared_dims, num_masks):
    out = make(0.5, shared_dims=shared_dims)(torch.ones(B, T, 3, D))
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert len({tuple(mask.tolist()) for mask in out[:, 0].flatten(0, 1)}) == num_masks


@pytest.mark.parametrize("shared_dims, shape", [((), (B, T, D)), ((1,), (B, 1, D)), ((0, 1), (1, 1, D))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_is_what_a_call_multiplies_by(shared_dims, shape, dtype):
    dropout, x = make(0.5, shared_dims=shared_dims), torch.randn(B, T, D, dtype=dtype)
    torch.manual_seed(3)
    mask = dropout.mask(x, x.shape)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), x * mask)
    assert mask.shape == shape and mask.dtype == dtype


def test_the_gradient_passes_through_the_mask():
    x = torch.randn(B, T, D, requires_grad=True)
    out = make(0.5)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), out.detach())


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused_with_its_flag(rate):
    with pytest.raises(ValueError, match=f"--dropout-input {rate}"):
        make(rate)
