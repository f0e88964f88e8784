"""The label matrix that is kept in evaluation."""

import copy
import dataclasses
import pickle

import pytest
import torch
from builders import make_states
from fairseq.optim.adam import Adam as HostAdam
from label_layer_cases import RATE, TARGET, WIDTHS, WITH_LABEL_NETWORK, build, draw_states
from torch import nn

from fairseq_plugins.modules.label_network import ACTIVATIONS, LabelNetwork

every_network = pytest.mark.parametrize("name, flags", WITH_LABEL_NETWORK)


@pytest.fixture
def states():
    return draw_states()


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


HIDDEN_UPDATES = {"host's adam": HostAdam, "fused adam": lambda params, lr: torch.optim.Adam(params, lr=lr, fused=True)}


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
