"""Output layers of one softmax against the equations: full, tied, bilinear, dual and DRILL."""

import copy
import dataclasses
import math
import pickle
from functools import partial

import plain_formulas
import pytest
import torch
import torch.nn.functional as F
from builders import build_output_layer, build_random_output_layer, make_states
from fairseq.optim.adam import Adam as FairseqAdam
from torch import nn

from fairseq_plugins.modules.layers import ACTIVATIONS, LabelNetwork
from fairseq_plugins.options import flag_of

V = 101
WIDTHS = [8, 12, 8]
RATE = 0.6
TARGET = torch.arange(12).view(3, 4) * 7
DRILL_LABELS = dict(label_encoder="drill", latent_dropout=0.0)
WITH_LABEL_NETWORK = [
    ("dual", {}),
    ("drill", {}),
    ("drill", dict(label_hidden_network="on")),
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


SOFTMAX_WIDTHS = [7, 9, 7]
SOFTMAX_V = 123


@pytest.fixture
def embedding():
    return nn.Parameter(torch.randn(SOFTMAX_V, SOFTMAX_WIDTHS[0], dtype=torch.float64))


def build_softmax(name, embedding, widths=SOFTMAX_WIDTHS):
    return build_output_layer(name, widths=widths, vocab_size=SOFTMAX_V, shared_weight=embedding).double()


def logits_by_hand(layer, states, embedding):
    weight = embedding if layer.name == "tied" else layer.projection.weight
    return states.layers[-1] @ weight.T + layer.projection.bias


@pytest.mark.parametrize("name", ["tied", "full"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_the_librarys_cross_entropy(name, label_smoothing, embedding):
    layer = build_softmax(name, embedding)
    states, target = make_states(SOFTMAX_WIDTHS, dtype=torch.float64), torch.randint(SOFTMAX_V, (3, 4))
    nn.init.uniform_(layer.projection.bias)
    scores = layer(states, target, label_smoothing=label_smoothing)
    logits = logits_by_hand(layer, states, embedding)
    expected = F.cross_entropy(logits.movedim(-1, 1), target, reduction="none", label_smoothing=label_smoothing)
    torch.testing.assert_close(scores.loss, expected.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        scores.nll, F.cross_entropy(logits.movedim(-1, 1), target, reduction="none").detach(), rtol=1e-12, atol=1e-12
    )
    params = list(layer.parameters())
    ours, theirs = torch.autograd.grad(scores.loss, params), torch.autograd.grad(expected.sum(), params)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_tied_layer_owns_the_bias_only(embedding):
    layer = build_softmax("tied", embedding)
    assert layer.projection.weight is embedding
    assert sum(p.numel() for p in layer.parameters()) - embedding.numel() == SOFTMAX_V


def test_a_full_layer_has_a_matrix_as_wide_as_the_last_layer(embedding):
    layer = build_softmax("full", embedding, widths=[7, 9, 11])
    assert layer.projection.weight.shape == (SOFTMAX_V, 11)
    assert layer.projection.weight is not embedding


def test_an_own_matrix_starts_like_an_embedding_and_the_bias_at_zero(embedding):
    projection = build_softmax("full", embedding, widths=[7, 200]).projection
    assert 0.0999 < projection.weight.abs().max().item() <= 0.1
    assert torch.equal(projection.bias, torch.zeros_like(projection.bias))


def test_tying_needs_equal_widths(embedding):
    with pytest.raises(ValueError, match="9 features.*7 wide: give .*--hidden-sizes.*--decoder-output-dim"):
        build_softmax("tied", embedding, widths=[7, 9])


def test_tying_needs_an_embedding():
    with pytest.raises(AssertionError):
        build_output_layer("tied", widths=SOFTMAX_WIDTHS, vocab_size=SOFTMAX_V, has_shared_weight=False)


def test_the_matrix_has_rank_at_most_d_plus_2(embedding):
    states = make_states(SOFTMAX_WIDTHS, num_rows=10, num_steps=10, dtype=torch.float64)
    log_probs = build_softmax("tied", embedding)(states).log_probs.flatten(0, 1)
    assert torch.linalg.matrix_rank(log_probs).item() <= SOFTMAX_WIDTHS[-1] + 2


@pytest.mark.parametrize(
    "name, flags, message",
    [
        ("drill", dict(widths=[8, 9]), "drill compares hidden states, 9 wide.*embeddings, 8 wide.*--hidden-sizes"),
        ("drill", dict(label_depth=-1), "--label-depth -1: give 0 or more"),
        ("mos", dict(label_depth=-1, **DRILL_LABELS), "--label-depth -1: give 0 or more"),
        ("dual", dict(label_width=0), "--label-width 0: give a value above 0"),
        ("bilinear", dict(label_dropout=1.0), "--label-dropout 1.0: a dropout rate is"),
        *((name, dict(label_dropout=-0.1, **flags), "--label-dropout -0.1") for name, flags in WITH_LABEL_NETWORK),
        *(
            (
                name,
                {flag: value, **(DRILL_LABELS if name == "mos" else {})},
                f"{flag_of(flag)}: not a flag of .* {name}",
            )
            for name, flag, value in [
                ("bilinear", "label_depth", 2),
                ("bilinear", "label_activation", "relu"),
                ("dual", "label_depth", 2),
                ("dual", "label_hidden_network", "on"),
                ("drill", "label_width", 3),
                ("drill", "label_encoder", "drill"),
                ("tied", "label_encoder", "drill"),
                ("mos", "label_hidden_network", "on"),
                ("mos", "label_width", 3),
            ]
        ),
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


@pytest.mark.parametrize("name", ["mos", "doc", "tied", "full"])
@pytest.mark.parametrize("encoder", [{}, {"label_encoder": "none"}])
def test_label_flags_without_a_label_network_are_refused(encoder, name):
    encoder = encoder if name in ("mos", "doc") else {}
    is_mixture = name in ("mos", "doc")
    message = f" has no effect on this .* {name}: .*add --label-encoder" if is_mixture else f": not a flag of .* {name}"
    for flag, value in LABEL_FLAGS.items():
        with pytest.raises(ValueError, match=f"^--{flag.replace('_', '-')}{message}"):
            build(name, **encoder, **{flag: value})
    with pytest.raises(
        ValueError, match="^--label-depth has no" if is_mixture else "^--label-depth, --label-init: not"
    ):
        build(name, **encoder, label_init="glorot", label_depth=1)


@pytest.mark.parametrize("name, flags", [("drill", {}), ("mos", DRILL_LABELS), ("doc", DRILL_LABELS)])
def test_label_flags_are_those_of_drill(name, flags):
    encoder = build(name, **flags, **LABEL_FLAGS).projection.label_encoder
    (layer,) = encoder.layers
    assert (encoder.residual, encoder.layer_residual) == (False, True)
    assert (layer.place, layer.mask, layer.dropout.rate) == ("output", "standard", 0.1)


every_mask_and_rate = pytest.mark.parametrize(
    "mask, rate", [("variational", 0.0), ("variational", RATE), ("standard", RATE)]
)


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


@every_mask_and_rate
@pytest.mark.parametrize("widths", [[8, 12, 8], [8, 5], [6, 9, 11]])
def test_bilinear(widths, rate, mask, masks):
    layer, states = build("bilinear", widths=widths, label_dropout=rate, label_mask=mask), draw_states(widths)

    def by_hand():
        labels = plain_formulas.label_matrix(layer, input_masks=masks[-1:])
        return plain_formulas.expert_probs(layer, states.layers, labels)

    assert_same(layer, states, by_hand)
    assert {m.shape for m in masks} == ({(1 if mask == "variational" else V, widths[0])} if rate else set())


@every_mask_and_rate
@pytest.mark.parametrize(
    "widths, joint_width, activation",
    [([8, 12, 8], 8, "linear"), ([8, 5], 8, "relu"), ([6, 9, 11], 7, "sigmoid"), ([6, 9, 11], 7, "tanh")],
)
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


@every_mask_and_rate
@pytest.mark.parametrize("flags", DRILLS, ids=repr)
@pytest.mark.parametrize("hidden_network", ["off", "on"])
def test_drill(hidden_network, flags, rate, mask, masks, states):
    """The first input of the network of the hidden states is not dropped."""
    layer = build("drill", label_dropout=rate, label_mask=mask, label_hidden_network=hidden_network, **flags)
    depth, place = flags["label_depth"], flags.get("label_dropout_place", "input")
    num_hidden_masks = 0 if hidden_network == "off" else depth - 1 if place == "input" else depth

    def by_hand():
        drawn = masks[-depth - num_hidden_masks :]
        hidden_masks, label_masks = drawn[:num_hidden_masks], drawn[num_hidden_masks:]
        hidden_masks = [1.0] * (depth - len(hidden_masks)) + hidden_masks
        hidden = states.layers[-1]
        if hidden_network == "on":
            hidden = encoded(layer.hidden_encoder, hidden, flags, hidden_masks)
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


@every_mask_and_rate
@pytest.mark.parametrize(
    "name, experts, flags", [("mos", "0 0 3", DRILLS[1]), ("doc", "1 2 2", DRILLS[2]), ("doc", "0 3 0", DRILLS[3])]
)
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
def test_without_gradients_labels_are_encoded_once(name, flags, states, count):
    layer = build(name, **flags).eval()
    first = score(layer, states)
    assert all(torch.equal(score(layer, states), first) for _ in range(3))
    with torch.no_grad():
        layer(states, TARGET)
    assert count(layer) == 1
    assert_fresh(layer, states)


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


@every_network
def test_with_gradients_and_in_training_labels_are_encoded_at_every_call(name, flags, states, count):
    layer = build(name, **flags).eval()
    for _ in range(2):
        layer(states), layer(states, TARGET)
    assert count(layer) == 4
    layer.train()
    for _ in range(2):
        score(layer, states)
    assert count(layer) == 2


@every_network
def test_a_kept_matrix_does_not_stop_gradients(name, flags, states):
    layer = build(name, **flags).eval()
    score(layer, states)
    layer(states, TARGET).loss.backward()
    assert all(param.grad is not None and param.grad.any() for param in layer.parameters())


def change_in_place(part):
    def change(layer):
        with torch.no_grad():
            part(layer.projection).add_(0.1)

    return change


def step(optimiser):
    def change(layer):
        params = list(layer.parameters())
        for param in params:
            param.grad = torch.ones_like(param)
        optimiser(params, lr=0.1).step()

    return change


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
    "sgd": step(torch.optim.SGD),
    "adam": step(torch.optim.Adam),
    "exchanged weights": exchange,
    "another parameter": replace,
    "checkpoint": load(assign=False),
    "assigned checkpoint": load(assign=True),
    "checkpoint of the network alone": load(assign=False, part=lambda layer: layer.projection.label_encoder),
}


@every_network
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_weights_in_evaluation_is_seen(change, name, flags, states, count):
    layer = build(name, **flags).eval()
    before = score(layer, states)
    change(layer)
    count(layer)
    after = score(layer, states)
    assert count(layer) == 1 and not torch.equal(before, after)
    assert_fresh(layer, states)


@every_network
def test_training_drops_the_kept_matrix(name, flags, states, count):
    layer = build(name, **flags).eval()
    before = score(layer, states)
    for param in layer.train().parameters():
        param.data.add_(0.1)
    assert count(layer) == 1
    assert not torch.equal(before, score(layer.eval(), states))
    assert count(layer) == 1
    assert_fresh(layer, states)


HIDDEN_UPDATES = {
    "host's adam": FairseqAdam,
    "fused adam": lambda params, lr: torch.optim.Adam(params, lr=lr, fused=True),
}


@pytest.mark.parametrize("optimiser", HIDDEN_UPDATES.values(), ids=HIDDEN_UPDATES.keys())
def test_learning_in_evaluation_mode_is_seen_where_the_optimiser_hides_its_update(optimiser, states):
    layer = build("drill").eval()
    learner = optimiser(layer.parameters(), lr=0.1)
    score(layer, states)
    layer(states, TARGET).loss.backward()
    learner.step()
    assert_fresh(layer, states)


@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cast_drops_the_kept_matrix(dtype, name, flags, states, count):
    layer = build(name, **flags).eval()
    score(layer, states)
    cast_states = make_states(WIDTHS, dtype=dtype)
    assert layer.to(dtype).projection.label_matrix().dtype == dtype
    assert_fresh(layer, cast_states)
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


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_can_be_pickled(activation, states):
    layer = build("drill", label_activation=activation).eval()
    assert torch.equal(score(pickle.loads(pickle.dumps(layer)), states), score(layer, states))


def test_bilinear_labels_are_the_embedding_itself_in_evaluation(states):
    layer = build("bilinear", label_dropout=RATE).eval()
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            assert layer.projection.label_matrix() is layer.projection.weight
    change_in_place(lambda projection: projection.weight)(layer)
    assert_fresh(layer, states)


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
