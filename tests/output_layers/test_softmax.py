"""Output layers of one softmax against the equations: full, tied, bilinear, dual and DRILL."""

import copy
import dataclasses
import pickle
from functools import partial

import plain_formulas
import pytest
import torch
from assertions import assert_near, assert_scores
from builders import build_output_layer, build_random_output_layer, make_states
from fairseq.optim.adam import Adam as FairseqAdam
from torch import nn

from fairseq_plugins.options import flag_of
from fairseq_plugins.output_layers import base
from fairseq_plugins.output_layers.labels import LabelNetwork

V = 101
WIDTHS = [8, 12, 8]
RATE = 0.6
TARGET = torch.arange(12).view(3, 4) * 7
DRILL_LABELS = dict(label_encoder="drill", latent_dropout=0.0)
WITH_LABEL_NETWORK = [
    ("dual", {}),
    ("drill", {}),
    ("mos", DRILL_LABELS),
    ("doc", DRILL_LABELS),
]
"""Layers with a network of the labels, and their flags."""

build = partial(build_random_output_layer, widths=WIDTHS, vocab_size=V)


def draw_states(widths=WIDTHS, dtype=torch.float64):
    """States that take gradients."""
    states = make_states(widths, dtype=dtype)
    for h in states.layers:
        h.requires_grad_()
    return states


@pytest.mark.parametrize(
    "name, flags, message",
    [
        ("tied", dict(widths=[8, 9]), "--hidden-sizes"),
        ("drill", dict(widths=[8, 9]), "--hidden-sizes"),
        ("drill", dict(label_depth=-1), "--label-depth -1"),
        ("mos", dict(label_depth=-1, **DRILL_LABELS), "--label-depth -1"),
        ("dual", dict(label_width=0), "--label-width 0"),
        ("dual", dict(label_width=2.5), "--label-width 2.5: give a whole number"),
        ("drill", dict(label_depth=2.5), "--label-depth 2.5: give a whole number"),
        ("bilinear", dict(label_dropout=1.0), "--label-dropout 1.0"),
        *((name, dict(label_dropout=-0.1, **flags), "--label-dropout -0.1") for name, flags in WITH_LABEL_NETWORK),
        ("bilinear", dict(label_depth=2), "--label-depth: not a flag of .* bilinear"),
        ("drill", dict(label_encoder="drill"), "--label-encoder: not a flag of .* drill"),
        ("mos", dict(label_width=3, **DRILL_LABELS), "--label-width: not a flag of .* mos"),
    ],
)
def test_flags_that_do_not_fit_are_refused(name, flags, message):
    with pytest.raises(ValueError, match=message):
        build(name, **flags)


LABEL_FLAGS = dict(
    label_dropout=0.1,
    label_mask="standard",
    label_activation="relu",
    label_init="glorot",
    label_depth=1,
    label_residual="off",
    label_layer_residual="on",
    label_dropout_place="output",
)


@pytest.mark.parametrize("name", ["mos", "doc"])
@pytest.mark.parametrize("encoder", [{}, {"label_encoder": "none"}])
def test_label_flags_without_a_label_network_are_refused(encoder, name):
    for flag, value in LABEL_FLAGS.items():
        message = f"^{flag_of(flag)} has no effect on this .* {name}: .*add --label-encoder"
        with pytest.raises(ValueError, match=message):
            build(name, **encoder, **{flag: value})


@pytest.mark.parametrize("name", ["tied", "full"])
def test_label_flags_are_no_flags_of_a_layer_without_a_label_network(name):
    flags = ", ".join(map(flag_of, sorted(LABEL_FLAGS)))
    with pytest.raises(ValueError, match=f"^{flags}: not a flag of .* {name}"):
        build(name, **LABEL_FLAGS)


@pytest.fixture
def states():
    return draw_states()


# the equations


DRILLS = [
    dict(label_depth=1, label_activation="linear"),
    dict(label_depth=2),
    dict(label_depth=3, label_activation="relu", label_layer_residual="on"),
    dict(label_depth=4, label_activation="tanh", label_dropout_place="output"),
    dict(label_depth=2, label_residual="off", label_layer_residual="on", label_dropout_place="output"),
    dict(label_depth=4, label_residual="off"),
]
OTHER_WIDTHS, MIXTURE = [6, 9, 11], dict(latent_dropout=0.0)
CONFIGURATIONS = [  # those with dropout of labels first
    ("bilinear", WIDTHS, {}),
    ("bilinear", OTHER_WIDTHS, {}),
    ("dual", [8, 5], dict(label_activation="relu")),
    ("dual", OTHER_WIDTHS, dict(label_width=7)),
    ("dual", OTHER_WIDTHS, dict(label_width=7, label_activation="tanh")),
    *(("drill", WIDTHS, flags) for flags in DRILLS),
    ("mos", WIDTHS, dict(experts_per_layer="0 0 3", **DRILL_LABELS, label_depth=2)),
    ("doc", WIDTHS, dict(experts_per_layer="1 2 2", **DRILL_LABELS, **DRILLS[2])),
]
WITHOUT_LABEL_DROPOUT = [
    ("full", OTHER_WIDTHS, {}),
    ("tied", WIDTHS, {}),
    *(("doc", OTHER_WIDTHS, dict(experts_per_layer=experts, **MIXTURE)) for experts in ("0 0 3", "1 2 3", "0 4 0")),
    ("doc", OTHER_WIDTHS, dict(experts_per_layer="3 0 0", **MIXTURE)),
    ("doc", OTHER_WIDTHS, dict(experts_per_layer="0 2 1", latent_activation="linear", **MIXTURE)),
]


def label_network(layer):
    encoder = layer.projection.label_encoder
    return encoder if isinstance(encoder, LabelNetwork) else None


def encoded(network, x, flags, masks):
    place, activation = flags.get("label_dropout_place", "input"), flags.get("label_activation", "sigmoid")
    return plain_formulas.encoded(network, x, activation, **{f"{place}_masks": masks})


def probs_by_hand(layer, states, flags, masks):
    """Softmaxes and prior with the last masks that were drawn, which are of labels."""
    network, hidden, labels = label_network(layer), None, None
    if layer.name == "dual":
        hidden = encoded(layer.hidden_encoder, states.layers[-1], flags, [1.0])
    if network is not None:
        labels = encoded(network, layer.projection.weight, flags, masks[-len(network.layers) :])
    elif layer.name == "bilinear":
        labels = plain_formulas.label_matrix(layer, input_masks=masks[-1:])
    activation = flags.get("latent_activation", "tanh")
    return plain_formulas.expert_probs(layer, states.layers, labels, hidden, activation)


@pytest.mark.parametrize(
    "name, widths, flags, mask, rate",
    [(*case, mask, RATE) for case in CONFIGURATIONS for mask in ("variational", "standard")]
    + [(*case, "variational", 0.0) for case in (*CONFIGURATIONS[1::4], *WITHOUT_LABEL_DROPOUT)],
)
def test_loss_and_gradients_are_those_of_the_equations(name, widths, flags, mask, rate, masks):
    """Loss, NLL, log-probabilities and all gradients, with the masks that were drawn, and in evaluation without."""
    given = dict(label_dropout=rate, label_mask=mask) if rate else {}
    layer, states = build(name, widths=widths, **flags, **given), draw_states(widths)
    network = label_network(layer)
    depth = 1 if network is None else len(network.layers)
    if network is not None and name != "dual":
        assert network.residual == (flags.get("label_residual", "on") == "on")
        assert network.layer_residual == (flags.get("label_layer_residual", "off") == "on")
    for training, label_smoothing in ((True, 0.0), (True, 0.1), (False, 0.1)):
        masks.clear()
        layer.train(training)
        torch.manual_seed(5)
        scores = layer(states, TARGET, label_smoothing=label_smoothing)
        probs, prior = probs_by_hand(layer, states, flags, masks)
        log_p = (prior.unsqueeze(-1) * probs).sum(-2).log()
        nll = -log_p.gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
        expected = ((1 - label_smoothing) * nll - label_smoothing * (prior * probs.log().mean(-1)).sum(-1)).sum()
        assert_scores(layer, states, scores, loss=expected, nll=nll, log_p=log_p)
        assert len(masks) == (3 * depth if rate and training else 0)
        assert all(m.numel() // m.size(-1) == (1 if mask == "variational" else V) for m in masks)
        assert all(m.size(-1) in (widths[0], 7) for m in masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("widths, vocab_size", [([7, 9, 7], 252), ([13, 13], 507)])
@pytest.mark.parametrize(
    "name, flags",
    [*((name, {}) for name in ("full", "tied", "bilinear", "dual", "drill")), ("mos", DRILL_LABELS)],
)
def test_awkward_sizes_in_narrow_types(name, flags, widths, vocab_size, dtype):
    layer = build(name, widths=widths, vocab_size=vocab_size, dtype=dtype, **flags)
    states = make_states(widths, dtype=dtype)
    scores = layer(states, TARGET)
    ours = torch.autograd.grad(scores.loss, list(layer.parameters()))
    probs = plain_formulas.output_probs(layer.double(), [h.double() for h in states.layers])
    nll = -probs.gather(-1, TARGET.unsqueeze(-1)).squeeze(-1).log()
    gradients = torch.autograd.grad(nll.sum(), list(layer.parameters()))
    if dtype == torch.float32:
        torch.testing.assert_close(scores.nll.double(), nll.detach(), rtol=2e-6, atol=2e-6)
        torch.testing.assert_close([x.double() for x in ours], [*gradients], rtol=1e-4, atol=1e-5)
    for found, expected in ((scores.nll, nll.detach()), *zip(ours, gradients)):
        assert_near(found, expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name, flags", [("bilinear", {}), ("dual", {}), ("drill", {}), ("mos", DRILL_LABELS)])
def test_training_under_autocast(name, flags, precision, monkeypatch):
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    flags = dict(label_dropout=RATE, output_precision=precision, **flags)
    layer, states = build(name, dtype=torch.float32, **flags), make_states(WIDTHS)
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


@pytest.mark.parametrize("training, dtype", [(True, torch.float32), (False, torch.float64)])
def test_drill_without_layers_is_tied_bit_for_bit(training, dtype):
    states = draw_states(WIDTHS, dtype)
    flags = dict(label_depth=0, label_dropout=RATE)
    tied, drill = build("tied", dtype=dtype), build("drill", dtype=dtype, **flags)
    drill.projection.load_state_dict(tied.projection.state_dict())
    expected, found = (results(layer.train(training), states) for layer in (tied, drill))
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


# gradients in training


every_network = pytest.mark.parametrize("name, flags", WITH_LABEL_NETWORK)


@pytest.fixture
def count(monkeypatch):
    """``count(layer)``: passes of all labels through the layer's network since the last count."""
    calls, forward = [], LabelNetwork.forward
    monkeypatch.setattr(LabelNetwork, "forward", lambda network, x: calls.append(network) or forward(network, x))

    def take(layer):
        number = sum(network is layer.projection.label_encoder for network in calls)
        calls.clear()
        return number

    return take


@torch.no_grad()
def score(layer, states):
    return layer(states).log_probs


def assert_fresh(layer, states):
    """The log-probabilities are those of a copy, which keeps no matrix."""
    assert torch.equal(score(layer, states), score(copy.deepcopy(layer), states))


@every_network
def test_labels_are_encoded_once_only_without_gradients_in_evaluation(name, flags, states, count):
    layer = build(name, **flags).eval()
    first = score(layer, states)
    assert all(torch.equal(score(layer, states), first) for _ in range(3))
    with torch.no_grad():
        layer(states, TARGET)
    assert count(layer) == 1
    assert_fresh(layer, states)
    layer(states)
    layer(states, TARGET).loss.backward()
    assert count(layer) == 2 and all(param.grad is not None and param.grad.any() for param in layer.parameters())
    layer.train()
    for _ in range(2):
        score(layer, states)
    assert count(layer) == 2


@every_network
def test_labels_of_inference_mode_are_not_kept_for_gradients_by_states(name, flags, states):
    layer = build(name, **flags).eval().requires_grad_(False)
    with torch.inference_mode():
        scored = layer(states).log_probs.clone()
    layers = [one.detach().requires_grad_() for one in states.layers]
    found = layer(dataclasses.replace(states, layers=layers, top=layers[-1]), TARGET).loss
    found.backward()
    assert layers[-1].grad.abs().sum() > 0
    with torch.inference_mode():
        assert torch.equal(layer(states).log_probs, scored)


def change_in_place(part):
    def change(layer):
        with torch.no_grad():
            part(layer.projection).add_(0.1)

    return change


def learn(optimiser):
    """As in training, with optimisers that may hide their updates."""

    def change(layer):
        layer(draw_states(), TARGET).loss.backward()
        optimiser(layer.parameters(), lr=0.1).step()

    return change


def change_in_training(layer):
    for param in layer.train().parameters():
        param.data.add_(0.1)
    layer.eval()


def exchange(layer):
    """As an averaging optimiser shows its average."""
    for param in layer.parameters():
        param.data = param.data + 0.1


def replace(layer):
    layer.projection.label_encoder.layers[0].weight = nn.Parameter(torch.rand(8, 8).double())


def load(assign, part=lambda layer: layer):
    def change(layer):
        halved = {name: 0.5 * param.detach() for name, param in part(layer).named_parameters()}
        part(layer).load_state_dict({**part(layer).state_dict(), **halved}, assign=assign)

    return change


CHANGES = {
    "embedding in place": change_in_place(lambda projection: projection.weight),
    "matrix in place": change_in_place(lambda projection: projection.label_encoder.layers[-1].weight),
    "bias in place": change_in_place(lambda projection: projection.label_encoder.layers[0].bias),
    "adam": learn(torch.optim.Adam),
    "fused adam": learn(lambda params, lr: torch.optim.Adam(params, lr=lr, fused=True)),
    "fairseq's adam": learn(FairseqAdam),
    "in training": change_in_training,
    "exchanged weights": exchange,
    "another parameter": replace,
    "checkpoint": load(assign=False),
    "assigned checkpoint": load(assign=True),
    "checkpoint of the network alone": load(assign=False, part=lambda layer: layer.projection.label_encoder),
}


@pytest.mark.parametrize(
    "name, flags, change",
    [*((*case, "in training") for case in WITH_LABEL_NETWORK), *(("drill", {}, change) for change in CHANGES)],
)
def test_a_change_of_weights_in_evaluation_is_seen(change, name, flags, states, count):
    layer = build(name, **flags).eval()
    before = score(layer, states)
    CHANGES[change](layer)
    count(layer)
    after = score(layer, states)
    assert count(layer) == 1 and not torch.equal(before, after)
    assert_fresh(layer, states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cast_drops_the_kept_matrix(dtype, states, count):
    layer = build("drill").eval()
    score(layer, states)
    assert layer.to(dtype).projection.label_matrix().dtype == dtype
    assert_fresh(layer, make_states(WIDTHS, dtype=dtype))
    count(layer)
    score(layer.double(), states)
    assert count(layer) == 1
    assert_fresh(layer, states)


@every_network
def test_autocast_has_a_matrix_of_its_own(name, flags):
    layer, states = build(name, dtype=torch.float32, **flags).eval(), make_states(WIDTHS)
    copies = []
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled), torch.no_grad():
            copies.append(layer.projection.label_matrix())
            assert_fresh(layer, states)
    assert torch.equal(copies[0], copies[2]) and torch.equal(copies[1], copies[3])
    assert not torch.equal(copies[0].float(), copies[1].float())


@every_network
def test_copies_and_pickles_do_not_carry_the_kept_matrix(name, flags, states, count):
    layer = build(name, **flags).eval()
    size, names = len(pickle.dumps(layer)), set(layer.state_dict())
    expected = score(layer, states)
    assert len(pickle.dumps(layer)) == size and set(layer.state_dict()) == names
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(score(made, states), expected)
        assert count(made) == 1
        change_in_place(lambda projection: projection.weight)(made)
        assert not torch.equal(score(made, states), expected)
        assert torch.equal(score(layer, states), expected)


def test_bilinear_labels_are_the_embedding_itself_in_evaluation(states):
    layer = build("bilinear", label_dropout=RATE).eval()
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            assert layer.projection.label_matrix() is layer.projection.weight
    change_in_place(lambda projection: projection.weight)(layer)
    assert_fresh(layer, states)


@pytest.mark.parametrize("name", ["bilinear", "dual", "drill", "mos", "doc"])
def test_labels_are_the_shared_embedding_or_as_wide(name):
    shared = nn.Parameter(torch.zeros(V, 8))
    for given in (shared, None):
        layer = build_output_layer(
            name, widths=WIDTHS, vocab_size=V, shared_weight=given, has_shared_weight=given is not None
        )
        assert (layer.projection.weight is shared) == (given is shared)
        assert layer.projection.weight.shape == (V, 8) and not layer.projection.bias.any()
