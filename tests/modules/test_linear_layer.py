"""The linear layer against torch's."""

import pytest
import torch
from torch import nn

from fairseq_plugins.modules.linear import Linear

every_bias = pytest.mark.parametrize("bias", [True, False])


def make(bias, dtype=torch.float64):
    ours, plain = Linear(5, 7, bias=bias).to(dtype), nn.Linear(5, 7, bias=bias).to(dtype)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@every_bias
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 0), (torch.float32, 1e-5), (torch.bfloat16, 0)])
def test_values_and_gradients_are_those_of_torchs_layer(bias, shape, dtype, tolerance):
    x, results = torch.randn(shape, dtype=dtype, requires_grad=True), []
    for layer in make(bias, dtype):
        output = layer(x)
        results.append([output, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@every_bias
def test_autocast_is_torchs(bias):
    x, results = torch.randn(4, 5, requires_grad=True), []
    for layer in make(bias, torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)
        assert output.dtype == torch.bfloat16
        results.append([output, *torch.autograd.grad(output.float().square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_in_float64_there_is_a_second_derivative():
    layer, x = make(True)[0], torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x)


def test_it_is_a_linear_layer_of_torch():
    torch.manual_seed(1)
    ours = Linear(5, 7)
    torch.manual_seed(1)
    plain = nn.Linear(5, 7)
    assert isinstance(ours, nn.Linear) and all(map(torch.equal, ours.parameters(), plain.parameters()))
