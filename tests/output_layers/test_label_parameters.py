"""Parameters of layers that compute their labels: how many there are, and where they start."""

import math

import pytest
import torch
from builders import build_output_layer
from label_layer_cases import DRILL_LABELS, WIDTHS, V, build
from torch import nn

from fairseq_plugins.modules.label_network import LabelNetwork


@pytest.mark.parametrize(
    "name, widths, flags, extra",
    [
        *(("drill", [400, 1150, 400], dict(label_depth=k), k * (400**2 + 400)) for k in range(5)),
        ("drill", [512, 512], dict(label_depth=2), 525_312),
        ("drill", [400, 400], dict(label_depth=2, label_hidden_network="on"), 4 * (400**2 + 400)),
        ("bilinear", [400, 1150, 400], {}, 160_000),
        ("bilinear", [400, 1150], {}, 400 * 1150),
        ("dual", [400, 1150, 400], {}, 320_800),
        ("dual", [400, 1150], dict(label_width=300), 300 * (400 + 1) + 300 * (1150 + 1)),
    ],
)
def test_parameters_beside_the_embedding_and_the_bias(name, widths, flags, extra):
    with torch.device("meta"):
        layer = build(name, widths=widths, **flags)
    assert sum(param.numel() for param in layer.parameters()) - V * widths[0] - V == extra


@pytest.mark.parametrize("name", ["mos", "doc"])
def test_parameters_that_drill_labels_add_to_a_mixture(name):
    with torch.device("meta"):
        layers = build(name, label_depth=4, **DRILL_LABELS), build(name)
    with_network, plain = (sum(param.numel() for param in layer.parameters()) for layer in layers)
    assert with_network - plain == 4 * (8**2 + 8)


@pytest.mark.parametrize("name", ["bilinear", "dual", "drill"])
def test_labels_are_the_shared_embedding_or_as_wide(name):
    shared = nn.Parameter(torch.zeros(V, 8))
    for given in (shared, None):
        layer = build_output_layer(
            name, widths=WIDTHS, vocab_size=V, shared_weight=given, has_shared_weight=given is not None
        )
        assert (layer.projection.weight is shared) == (given is shared)
        assert layer.projection.weight.shape == (V, 8) and not layer.projection.bias.any()


def test_the_bilinear_matrix_starts_within_a_tenth():
    weight = build_output_layer("bilinear", widths=[200, 300], vocab_size=V).bilinear.weight
    assert 0.099 < weight.max() <= 0.1 and -0.1 <= weight.min() < -0.099


@pytest.mark.parametrize("initialisation, bound", [("uniform", 0.1), ("glorot", math.sqrt(6 / 400))])
@pytest.mark.parametrize("name", ["dual", "drill"])
def test_label_init(name, initialisation, bound):
    layer = build_output_layer(name, widths=[200, 200], vocab_size=V, label_init=initialisation)
    networks = [module for module in layer.modules() if isinstance(module, LabelNetwork)]
    matrices = [label_layer.weight for network in networks for label_layer in network.layers]
    assert len(matrices) == 2 and all(0.98 * bound < m.abs().max() <= bound for m in matrices)
