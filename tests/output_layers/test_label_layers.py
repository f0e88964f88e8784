"""Bilinear, dual and DRILL, and mixtures of DRILL's labels, against the equations and against each other."""

import plain_formulas
import pytest
import torch
from builders import make_states
from label_layer_cases import DRILL_LABELS, RATE, TARGET, WIDTHS, V, build, draw_states
from torch import nn

from fairseq_plugins.modules.label_network import ACTIVATIONS

every_mask = pytest.mark.parametrize("mask", ["variational", "standard"])


@pytest.fixture
def states():
    return draw_states()


@pytest.fixture
def masks(monkeypatch):
    """Every mask that is drawn, in order, with the scale of what it keeps."""
    drawn = []

    def spy(draw):
        return lambda x, p: drawn.append(draw(x, p).double() / p) or x

    for name in ("bernoulli_", "lt_"):  # of features, and of single values
        monkeypatch.setattr(torch.Tensor, name, spy(getattr(torch.Tensor, name)))
    return drawn


def assert_same(layer, states, by_hand):
    """Loss, NLL, log-probabilities and all gradients are those of ``by_hand()``, what ``expert_probs`` returns."""
    for label_smoothing in (0.0, 0.1):
        torch.manual_seed(5)
        scores = layer(states, TARGET, label_smoothing=label_smoothing)
        probs, prior = by_hand()
        log_p = (prior.unsqueeze(-1) * probs).sum(-2).log()
        nll = -log_p.gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
        expected = ((1 - label_smoothing) * nll - label_smoothing * (prior * probs.log().mean(-1)).sum(-1)).sum()
        torch.testing.assert_close(scores.nll, nll.detach(), rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(scores.loss, expected, rtol=1e-11, atol=1e-11)
        inputs = [*layer.parameters(), *states.layers]
        ours, theirs = (torch.autograd.grad(y, inputs, materialize_grads=True) for y in (scores.loss, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        for with_gradients in (True, False):
            torch.manual_seed(5)
            with torch.set_grad_enabled(with_gradients):
                log_probs = layer(states).log_probs
            torch.testing.assert_close(log_probs.detach(), log_p.detach(), rtol=1e-11, atol=1e-11)


# the equations


@every_mask
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("widths", [[8, 12, 8], [8, 5], [6, 9, 11]])
def test_bilinear(widths, rate, mask, masks):
    layer, states = build("bilinear", widths=widths, label_dropout=rate, label_mask=mask), draw_states(widths)

    def by_hand():
        labels = plain_formulas.label_matrix(layer, input_masks=masks[-1:])
        return plain_formulas.expert_probs(layer, states.layers, labels)

    assert_same(layer, states, by_hand)
    assert {m.shape for m in masks} == ({(1 if mask == "variational" else V, widths[0])} if rate else set())


@every_mask
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("widths, joint_width", [([8, 12, 8], 8), ([8, 5], 8), ([6, 9, 11], 7)])
def test_dual(widths, joint_width, activation, rate, mask, masks):
    flags = {} if joint_width == widths[0] else dict(label_width=joint_width)
    flags.update(label_activation=activation, label_dropout=rate, label_mask=mask)
    layer, states = build("dual", widths=widths, **flags), draw_states(widths)

    def by_hand():
        labels = plain_formulas.label_matrix(layer, activation, input_masks=masks[-1:])
        hidden = plain_formulas.encoded(layer.hidden_encoder, states.layers[-1], activation)
        assert labels.shape == (V, joint_width) and hidden.shape == (3, 4, joint_width)
        return plain_formulas.expert_probs(layer, states.layers, labels, hidden)

    assert_same(layer, states, by_hand)
    assert {m.numel() for m in masks} == ({widths[0] * (1 if mask == "variational" else V)} if rate else set())


DRILLS = [
    dict(label_depth=1, label_activation="linear"),
    dict(label_depth=2),
    dict(label_depth=3, label_activation="relu", label_layer_residual="on"),
    dict(label_depth=4, label_activation="tanh", label_dropout_place="output"),
    dict(label_depth=2, label_residual="off", label_layer_residual="on", label_dropout_place="output"),
    dict(label_depth=4, label_residual="off"),
]


def encoded(network, x, flags, masks):
    place = flags.get("label_dropout_place", "input")
    activation = flags.get("label_activation", "sigmoid")
    assert network.residual == (flags.get("label_residual", "on") == "on")
    assert network.layer_residual == (flags.get("label_layer_residual", "off") == "on")
    return plain_formulas.encoded(network, x, activation, **{f"{place}_masks": masks})


@every_mask
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("flags", DRILLS, ids=repr)
def test_drill(flags, rate, mask, masks, states):
    layer, depth = build("drill", label_dropout=rate, label_mask=mask, **flags), flags["label_depth"]

    def by_hand():
        labels = encoded(layer.projection.label_encoder, layer.projection.weight, flags, masks[-depth:])
        return plain_formulas.expert_probs(layer, states.layers, labels)

    assert_same(layer, states, by_hand)
    assert len(masks) == (6 * depth if rate else 0)


@every_mask
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("flags", DRILLS, ids=repr)
def test_drill_with_a_network_of_the_hidden_states_whose_first_input_is_not_dropped(flags, rate, mask, masks, states):
    layer = build("drill", label_dropout=rate, label_mask=mask, label_hidden_network="on", **flags)
    depth, place = flags["label_depth"], flags.get("label_dropout_place", "input")
    num_hidden_masks = depth - 1 if place == "input" else depth

    def by_hand():
        drawn = masks[-depth - num_hidden_masks :]
        hidden_masks, label_masks = drawn[:num_hidden_masks], drawn[num_hidden_masks:]
        hidden_masks = [1.0] * (depth - len(hidden_masks)) + hidden_masks
        hidden = encoded(layer.hidden_encoder, states.layers[-1], flags, hidden_masks)
        labels = encoded(layer.projection.label_encoder, layer.projection.weight, flags, label_masks)
        return plain_formulas.expert_probs(layer, states.layers, labels, hidden)

    assert_same(layer, states, by_hand)
    assert len(masks) == (6 * (depth + num_hidden_masks) if rate else 0)


@pytest.mark.parametrize("place, num_masks", [("input", 3), ("output", 4)])
def test_a_variational_mask_of_hidden_states_is_drawn_for_each_batch_row(place, num_masks, masks, states):
    """The program published with DRILL does so. All labels share one mask."""
    flags = dict(label_hidden_network="on", label_depth=4, label_dropout=RATE, label_dropout_place=place)
    build("drill", **flags)(states, TARGET)
    hidden_masks, label_masks = masks[:num_masks], masks[num_masks:]
    assert [mask.shape for mask in hidden_masks] == [(3, 1, 8)] * num_masks
    assert len({tuple(row.flatten().tolist()) for mask in hidden_masks for row in mask}) > num_masks
    assert {mask.numel() for mask in label_masks} == {8} and len(label_masks) == 4


@every_mask
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("name, experts", [("mos", "0 0 3"), ("doc", "1 2 2"), ("doc", "0 3 0")])
@pytest.mark.parametrize("flags", DRILLS[1:4], ids=repr)
def test_mixtures_of_drill_labels(flags, name, experts, rate, mask, masks, states):
    drill = dict(label_dropout=rate, label_mask=mask, **DRILL_LABELS, **flags)
    layer, depth = build(name, experts_per_layer=experts, **drill), flags["label_depth"]

    def by_hand():
        labels = encoded(layer.projection.label_encoder, layer.projection.weight, flags, masks[-depth:])
        return plain_formulas.expert_probs(layer, states.layers, labels)

    assert_same(layer, states, by_hand)
    assert len(masks) == (6 * depth if rate else 0)


@pytest.mark.parametrize("widths, vocab_size", [([7, 9, 7], 252), ([13, 13], 507), ([5, 6, 5], 123)])
@pytest.mark.parametrize("name, flags", [("bilinear", {}), ("dual", {}), ("drill", {}), ("mos", DRILL_LABELS)])
def test_awkward_sizes_in_float32(name, flags, widths, vocab_size):
    layer = build(name, widths=widths, vocab_size=vocab_size, dtype=torch.float32, **flags)
    states = make_states(widths)
    scores = layer(states, TARGET)
    ours = torch.autograd.grad(scores.loss, list(layer.parameters()))
    probs = plain_formulas.output_probs(layer.double(), [h.double() for h in states.layers])
    nll = -probs.gather(-1, TARGET.unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(scores.nll.double(), nll.detach(), rtol=2e-6, atol=2e-6)
    for ours_, expected in zip(ours, torch.autograd.grad(nll.sum(), list(layer.parameters()))):
        torch.testing.assert_close(ours_.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, flags", [("bilinear", {}), ("dual", {}), ("drill", {}), ("mos", DRILL_LABELS)])
def test_training_under_autocast(name, flags):
    layer, states = build(name, dtype=torch.float32, label_dropout=RATE, **flags), make_states(WIDTHS)
    losses = []
    for enabled in (True, False):
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses.append(layer(states, TARGET).loss)
    torch.testing.assert_close(*losses, rtol=2e-2, atol=0)
    losses[0].backward()
    assert all(param.grad.dtype == torch.float32 and param.grad.isfinite().all() for param in layer.parameters())


# how the layers are related


def results(layer, states):
    """Loss, NLL, log-probabilities with and without gradients, gradients of E, b and the states."""
    torch.manual_seed(5)
    scores = layer(states, TARGET, label_smoothing=0.1)
    inputs = [layer.projection.weight, layer.projection.bias, states.layers[-1]]
    with torch.no_grad():
        log_probs = layer(states).log_probs
    return [scores.loss, scores.nll, layer(states).log_probs, log_probs, *torch.autograd.grad(scores.loss, inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hidden_network", ["on", "off"])
@pytest.mark.parametrize("training", [True, False])
def test_drill_without_layers_is_tied_bit_for_bit(training, hidden_network, dtype):
    states = draw_states(WIDTHS, dtype)
    flags = dict(label_depth=0, label_dropout=RATE, label_hidden_network=hidden_network)
    tied, drill = build("tied", dtype=dtype), build("drill", dtype=dtype, **flags)
    drill.projection.load_state_dict(tied.projection.state_dict())
    expected, found = (results(layer.train(training), states) for layer in (tied, drill))
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


@pytest.mark.parametrize("training", [True, False])
def test_linear_drill_with_one_layer_and_neither_bias_nor_residual_is_bilinear(training, states):
    drill = build("drill", label_depth=1, label_activation="linear", label_residual="off").train(training)
    bilinear = build("bilinear").train(training)
    (layer,) = drill.projection.label_encoder.layers
    nn.init.zeros_(layer.bias)
    bilinear.projection.load_state_dict({name: drill.projection.state_dict()[name] for name in ("weight", "bias")})
    bilinear.bilinear.weight.data = layer.weight.data.t().clone()
    torch.testing.assert_close(results(drill, states), results(bilinear, states), rtol=1e-12, atol=1e-12)
    drill_loss, bilinear_loss = drill(states, TARGET).loss, bilinear(states, TARGET).loss
    (ours,) = torch.autograd.grad(drill_loss, layer.weight)
    (theirs,) = torch.autograd.grad(bilinear_loss, bilinear.bilinear.weight)
    torch.testing.assert_close(ours, theirs.t(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["mos", "doc"])
def test_a_mixture_of_drill_labels_is_a_plain_mixture_with_their_matrix(name, states):
    encoded_mixture, plain = build(name, **DRILL_LABELS), build(name, latent_dropout=0.0)
    encoder = encoded_mixture.projection.label_encoder
    plain.load_state_dict(encoded_mixture.state_dict(), strict=False)
    plain.projection.weight.data = plain_formulas.encoded(encoder, encoded_mixture.projection.weight).detach()
    expected, found = results(plain, states), results(encoded_mixture, states)
    expected.pop(4), found.pop(4)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# gradients in training


@pytest.mark.parametrize("name, flags", [("bilinear", {}), ("dual", {}), ("drill", {}), ("doc", DRILL_LABELS)])
def test_with_label_dropout_all_parameters_get_gradients_over_several_passes(name, flags, states):
    layer = build(name, label_dropout=RATE, **flags)
    for _ in range(60):
        layer(states, TARGET).loss.backward()
    assert all(param.grad.all() for param in layer.parameters())


def test_a_dropped_feature_of_the_embedding_learns_through_the_residual_only(masks, states):
    for residual in ("on", "off"):
        layer = build("drill", label_depth=1, label_dropout=RATE, label_residual=residual)
        layer(states, TARGET).loss.backward()
        dropped = masks[-1] == 0
        learned = layer.projection.weight.grad[:, dropped]
        assert 0 < dropped.sum() < 8
        assert learned.all() if residual == "on" else not learned.any()
