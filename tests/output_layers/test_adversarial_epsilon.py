"""--adversarial-epsilon: it lowers the targets' logits in training, and nothing else."""

from functools import partial

import example_gates
import pytest
import torch
from builders import build_output_layer, make_states, randomise
from plain_formulas import mixture_loss
from test_output_layers import VOCAB_SIZE, WIDTHS, every_projected_layer

build = partial(build_output_layer, widths=WIDTHS, vocab_size=VOCAB_SIZE)
EPSILON = 0.1
TARGET = torch.randint(VOCAB_SIZE, (3, 4), generator=torch.Generator().manual_seed(5))


def pair(name, epsilon, **flags):
    """The same layer without the flag and with it."""
    layers = [randomise(build(name, **more, **flags).double()) for more in ({}, {"adversarial_epsilon": epsilon})]
    layers[1].load_state_dict(layers[0].state_dict())
    return layers


def results(layer, states, **options):
    """Loss, NLL and gradients, with masks drawn by a seed."""
    torch.manual_seed(7)
    scores = layer(states, TARGET, **options)
    return [scores.loss.detach(), scores.nll, *torch.autograd.grad(scores.loss, list(layer.parameters()))]


@every_projected_layer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_has_the_loss_of_lowered_targets(name, smoothing):
    plain, layer = (one.train() for one in pair(name, EPSILON))
    states = make_states(WIDTHS, dtype=torch.float64)
    torch.manual_seed(7)
    latents, log_prior = layer.mixture(states)
    weight, bias = layer.projection.label_matrix(), layer.projection.bias
    loss, nll = mixture_loss(latents, log_prior.exp(), weight, bias, TARGET, smoothing, epsilon=EPSILON)
    expected = [loss.sum().detach(), nll.detach(), *torch.autograd.grad(loss.sum(), list(layer.parameters()))]
    found = results(layer, states, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert found[0] > results(plain, states, label_smoothing=smoothing)[0]


@every_projected_layer
def test_a_gate_multiplies_the_lowered_logits(name):
    with example_gates.registered():
        plain, layer = (one.train() for one in pair(name, EPSILON, output_gate="trace"))
    states = make_states(WIDTHS, dtype=torch.float64)
    assert results(layer, states)[0] > results(plain, states)[0]


@every_projected_layer
def test_evaluation_is_as_it_was_bit_for_bit(name):
    plain, layer = (one.eval() for one in pair(name, EPSILON))
    states = make_states(WIDTHS, dtype=torch.float64)
    assert all(torch.equal(x, y) for x, y in zip(results(layer, states), results(plain, states)))
    with torch.no_grad():
        assert torch.equal(layer(states).log_probs, plain(states).log_probs)


@every_projected_layer
def test_an_epsilon_of_zero_is_no_epsilon_bit_for_bit(name):
    plain, layer = (one.train() for one in pair(name, 0.0))
    states = make_states(WIDTHS, dtype=torch.float64)
    assert all(torch.equal(x, y) for x, y in zip(results(layer, states), results(plain, states)))
    assert layer(states).log_probs is not None


def test_a_criterion_that_gives_no_targets_is_refused():
    layer = build("tied", adversarial_epsilon=EPSILON).train()
    with pytest.raises(ValueError, match="--adversarial-epsilon 0.1 needs the targets: .*regularized_cross_entropy"):
        layer(make_states(WIDTHS))


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, float("nan")])
def test_what_is_no_share_is_refused(epsilon):
    with pytest.raises(ValueError, match="--adversarial-epsilon .*: give a share of at least 0 below 1"):
        build("doc", adversarial_epsilon=epsilon)


def test_the_plain_loss_has_none():
    with pytest.raises(ValueError, match="--output-loss plain has no --adversarial-epsilon 0.1: leave out one"):
        build("full", output_loss="plain", adversarial_epsilon=0.1)
