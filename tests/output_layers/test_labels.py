"""Label networks by themselves: evaluation, work, narrow types and start. test_softmax.py has their equations."""

import math

import pytest
import torch
from builders import randomise
from plain_formulas import encoded
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.output_layers.labels import LabelLayer, LabelLayerOptions, LabelNetwork

V, C = 11, 6
RATE = 0.6


def build(width=C, *, depth=2, dropout=0.0, mask="variational", place="input"):
    options = LabelLayerOptions(label_mask=mask)
    layers = [LabelLayer(width, width, options, dropout=dropout, place=place) for _ in range(depth)]
    return randomise(LabelNetwork(layers, residual=True, layer_residual=False).double())


def draw_labels(width=C):
    return torch.randn(V, width, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("mask", ["variational", "standard"])
@pytest.mark.parametrize("place", ["input", "output"])
def test_evaluation_drops_nothing(place, mask, masks):
    network, e = build(dropout=RATE, mask=mask, place=place).eval(), draw_labels()
    result, expected = network(e), encoded(network, e)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    inputs, upstream = [e, *network.parameters()], torch.randn_like(result)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (result, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert masks == []


def products(network, e):
    """Multiply-adds of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        network(e).sum().backward()
    return counter.get_total_flops() / 2


def test_dropped_features_are_not_multiplied(masks):
    network, e = build(100, depth=3, dropout=RATE), draw_labels(100)
    found, num_kept = products(network, e), sum(mask.count_nonzero().item() for mask in masks)
    assert found == 3 * V * 100 * num_kept
    assert 0.2 * 300 < num_kept < 0.6 * 300
    assert products(network.eval(), e) == 3 * V * 100 * 300


@pytest.mark.parametrize("how", ["float32", "bfloat16", "autocast"])
def test_narrow_types(how):
    network, e = build(depth=4), draw_labels()
    expected = encoded(network, e)
    dtype = torch.bfloat16 if how == "bfloat16" else torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
        result = network.to(dtype)(e.to(dtype))
    assert result.dtype == dtype
    tolerance = 1e-6 if how == "float32" else 3e-2
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    result.sum().backward()
    assert all(param.grad.dtype == dtype and param.grad.isfinite().all() for param in network.parameters())


@pytest.mark.parametrize("initialisation, bound", [("uniform", 0.1), ("glorot", math.sqrt(6 / (300 + 100)))])
def test_matrices_and_biases_start_within_their_bounds(initialisation, bound):
    layer = LabelLayer(300, 100, LabelLayerOptions(label_init=initialisation), dropout=0.0)
    for param, limit in ((layer.weight, bound), (layer.bias, 1 / math.sqrt(300))):
        assert 0.9 * limit < param.max() <= limit and -limit <= param.min() < -0.9 * limit
        assert abs(param.mean()) < 0.2 * limit
