"""A layer of rectifiers against its equation."""

import pytest
import torch

from fairseq_plugins.modules.feed_forward import FeedForward

B, T, C, D = 3, 4, 5, 7


def test_it_is_the_rectified_sum_of_weighted_inputs_and_bias():
    layer, x = FeedForward(C, D).double(), torch.randn(B, T, C, dtype=torch.float64)
    expected = torch.zeros(B, T, D, dtype=torch.float64)
    for b, t, d in torch.cartesian_prod(*map(torch.arange, (B, T, D))):
        total = sum(layer.linear.weight[d, c] * x[b, t, c] for c in range(C)) + layer.linear.bias[d]
        expected[b, t, d] = max(total, torch.zeros(()))
    output = layer(x)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    assert (output == 0).any() and (output > 0).any()


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(ValueError, match=f"--output-hidden-size {size}: give a value above 0"):
        FeedForward(C, size)
