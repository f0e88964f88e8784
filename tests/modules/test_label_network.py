"""Label networks against Pappas & Henderson 2019, eq. 10 to 12, with every dropout mask written out."""

import math

import pytest
import torch
from plain_formulas import encoded
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.modules.label_network import ACTIVATIONS, LabelNetwork

V, C = 11, 6
RATE = 0.6

every_mask = pytest.mark.parametrize("mask", ["variational", "standard"])
every_place = pytest.mark.parametrize("place", ["input", "output"])


def build(in_width=C, out_width=C, **options):
    defaults = dict(
        depth=2,
        residual=True,
        layer_residual=False,
        activation="sigmoid",
        dropout=0.0,
        mask="variational",
        place="input",
        initialisation="uniform",
    )
    network = LabelNetwork(in_width, out_width, **{**defaults, **options}).double()
    for param in network.parameters():
        nn.init.uniform_(param, -0.7, 0.7)
    return network


def draw_labels(width=C):
    return torch.randn(V, width, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def masks(monkeypatch):
    """Every 0-1 mask that is drawn, in order."""
    drawn = []

    def spy(draw):
        return lambda x, p: drawn.append(draw(x, p).double()) or x

    for name in ("bernoulli_", "lt_"):  # of features, and of single values
        monkeypatch.setattr(torch.Tensor, name, spy(getattr(torch.Tensor, name)))
    return drawn


def assert_same(result, expected, network, e):
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    inputs, upstream = [e, *network.parameters()], torch.randn_like(result)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (result, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layer_residual", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("depth", range(5))
def test_labels_and_gradients_are_those_of_the_equation(depth, activation, residual, layer_residual):
    network = build(depth=depth, activation=activation, residual=residual, layer_residual=layer_residual)
    e = draw_labels()
    assert (network.residual, network.layer_residual) == (residual, layer_residual)
    assert_same(network(e), encoded(network, e, activation), network, e)


@pytest.mark.parametrize("depth", [1, 3])
def test_without_residuals_widths_may_differ(depth):
    network, e = build(4, 9, depth=depth, residual=False), draw_labels(4)
    assert network(e).shape == (V, 9)
    assert_same(network(e), encoded(network, e), network, e)


def test_without_layers_labels_stay_as_they_are():
    e = draw_labels()
    assert build(depth=0, dropout=RATE)(e) is e


# dropout


@every_mask
@every_place
@pytest.mark.parametrize("residual, layer_residual", [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("depth, activation", [(1, "sigmoid"), (2, "relu"), (4, "tanh"), (3, "linear")])
def test_dropped_labels_and_gradients_are_those_of_the_masks(
    depth, activation, residual, layer_residual, place, mask, masks
):
    options = dict(depth=depth, activation=activation, residual=residual, layer_residual=layer_residual)
    network, e = build(dropout=RATE, mask=mask, place=place, **options), draw_labels()
    result = network(e)
    assert len(masks) == depth
    scaled = {f"{place}_masks": [m / (1 - RATE) for m in masks]}
    assert_same(result, encoded(network, e, activation, **scaled), network, e)


@every_mask
@pytest.mark.parametrize("place, widths", [("input", [4, 9]), ("output", [9, 9])])
def test_masks_are_as_wide_as_what_they_drop(place, widths, mask, masks):
    network, e = build(4, 9, residual=False, dropout=RATE, mask=mask, place=place), draw_labels(4)
    result = network(e)
    assert [m.numel() for m in masks] == [width * (1 if mask == "variational" else V) for width in widths]
    scaled = {f"{place}_masks": [m / (1 - RATE) for m in masks]}
    assert_same(result, encoded(network, e, **scaled), network, e)


@every_place
def test_a_variational_mask_is_the_same_for_all_labels_and_a_standard_one_is_not(place):
    for mask in ("variational", "standard"):
        e = draw_labels()[:1].expand(V, C)
        dropped = build(dropout=RATE, mask=mask, place=place, residual=False)(e)
        assert torch.equal(dropped, dropped[:1].expand_as(dropped)) == (mask == "variational")


@every_mask
@every_place
def test_masks_are_fresh_in_each_layer_and_each_pass(place, mask, masks):
    network = build(64, 64, depth=3, dropout=RATE, mask=mask, place=place)
    for _ in range(2):
        network(draw_labels(64))
    assert len({tuple(m.flatten().tolist()) for m in masks}) == 2 * 3


@every_mask
@every_place
def test_the_residual_adds_labels_that_are_not_dropped(place, mask):
    network, e = build(dropout=0.9, mask=mask, place=place, activation="tanh"), draw_labels()
    for param in network.parameters():
        nn.init.zeros_(param)
    assert torch.equal(network(e), e)


@every_mask
@every_place
def test_evaluation_drops_nothing(place, mask, masks):
    network, e = build(dropout=RATE, mask=mask, place=place).eval(), draw_labels()
    assert_same(network(e), encoded(network, e), network, e)
    assert masks == []


@every_mask
@every_place
def test_a_linear_network_is_itself_on_average(place, mask):
    network = build(3, 3, activation="linear", dropout=RATE, mask=mask, place=place)
    num_draws, e = 1000, draw_labels(3)[:2]
    with torch.no_grad():
        draws = torch.stack([network(e) for _ in range(num_draws)])
        expected = network.eval()(e)
    standard_error = draws.std(dim=0) / math.sqrt(num_draws)
    assert ((draws.mean(dim=0) - expected).abs() < 5 * standard_error).all()


@every_place
def test_a_rate_of_zero_draws_no_mask(place, masks):
    build(place=place)(draw_labels())
    assert masks == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_may_drop_every_feature(dtype, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bernoulli_", lambda x, p: x.zero_())
    network, e = build(dropout=RATE).to(dtype), draw_labels().detach().to(dtype).requires_grad_()
    result = network(e)
    torch.testing.assert_close(result, torch.sigmoid(network.layers[-1].bias) + e)
    result.sum().backward()
    assert torch.equal(e.grad, torch.ones_like(e))


@pytest.mark.parametrize("residual", [True, False])
def test_dropped_features_get_their_gradient_from_the_residual_alone(residual, masks):
    network, e = build(depth=1, dropout=RATE, residual=residual), draw_labels()
    upstream = torch.randn(V, C).double()
    network(e).backward(upstream)
    dropped = masks[0] == 0
    assert 0 < dropped.sum() < C
    assert torch.equal(e.grad[:, dropped], upstream[:, dropped] if residual else torch.zeros(V, dropped.sum()).double())
    assert not network.layers[0].weight.grad[:, dropped].any()
    assert network.layers[0].weight.grad[:, ~dropped].all()


@every_mask
@every_place
def test_over_several_passes_every_parameter_gets_a_gradient(place, mask):
    network, e = build(depth=3, dropout=RATE, mask=mask, place=place), draw_labels()
    for _ in range(80):  # a matrix gets one only where neither its input nor what reads its output is dropped
        network(e).square().sum().backward()
    assert e.grad.all() and all(param.grad.all() for param in network.parameters())


def products(network, e):
    """Multiply-adds of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        network(e).sum().backward()
    return counter.get_total_flops() / 2


def test_dropped_features_are_not_multiplied(masks):
    network, e = build(100, 100, depth=3, dropout=RATE), draw_labels(100)
    assert products(network, e) == 3 * V * 100 * sum(m.sum().item() for m in masks)
    assert 0.2 * 300 < sum(m.sum().item() for m in masks) < 0.6 * 300
    assert products(network.eval(), e) == 3 * V * 100 * 300


# precision, initialisation, errors


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
    network = LabelNetwork(
        300,
        100,
        depth=2,
        residual=False,
        layer_residual=False,
        activation="relu",
        dropout=0.0,
        mask="standard",
        place="input",
        initialisation=initialisation,
    )
    first = network.layers[0]
    for param, limit in ((first.weight, bound), (first.bias, 1 / math.sqrt(300))):
        assert 0.9 * limit < param.max() <= limit and -limit <= param.min() < -0.9 * limit
        assert abs(param.mean()) < 0.2 * limit
    assert 0.09 < network.layers[1].bias.abs().max() <= 0.1


@pytest.mark.parametrize("depth", range(5))
def test_each_layer_has_a_matrix_and_a_bias(depth):
    assert sum(param.numel() for param in build(40, 40, depth=depth).parameters()) == depth * (40**2 + 40)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, math.nan])
def test_a_dropout_that_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match=f"--label-dropout {rate}"):
        build(dropout=rate)
