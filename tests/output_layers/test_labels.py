"""Label networks by themselves: work and start. test_softmax.py has their equations."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.output_layers.labels import LabelLayer, LabelLayerOptions, LabelNetwork

V, C = 11, 100


def products(network, e):
    """Multiply-adds of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        network(e).sum().backward()
    return counter.get_total_flops() / 2


def test_dropped_features_are_not_multiplied(masks):
    layers = [LabelLayer(C, C, LabelLayerOptions(), dropout=0.6) for _ in range(3)]
    network, e = LabelNetwork(layers).double(), torch.randn(V, C, dtype=torch.float64, requires_grad=True)
    found, num_kept = products(network, e), sum(mask.count_nonzero().item() for mask in masks)
    assert found == 3 * V * C * num_kept
    assert 0.2 < num_kept / (3 * C) < 0.6
    assert products(network.eval(), e) == 3 * V * C * 3 * C


@pytest.mark.parametrize("initialisation, bound", [("uniform", 0.1), ("glorot", math.sqrt(6 / (300 + 100)))])
def test_matrices_and_biases_start_within_their_bounds(initialisation, bound):
    layer = LabelLayer(300, 100, LabelLayerOptions(label_init=initialisation), dropout=0.0)
    for param, limit in ((layer.weight, bound), (layer.bias, 1 / math.sqrt(300))):
        assert 0.9 * limit < param.max() <= limit and -limit <= param.min() < -0.9 * limit
        assert abs(param.mean()) < 0.2 * limit
