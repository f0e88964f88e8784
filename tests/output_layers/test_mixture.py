"""MoS and DOC against the equations and each other, and the adversarial margin of any layer."""

from functools import partial

import plain_formulas
import pytest
import torch
from builders import build_output_layer, make_states, randomise
from plain_formulas import mixture_loss
from test_base import VOCAB_SIZE, WIDTHS, every_projected_layer

from fairseq_plugins.output_layers.mixture import DirectOutputConnection, MixtureOfSoftmaxes

V = 101
MIXTURE_WIDTHS = [6, 9, 8]


build = partial(build_output_layer, widths=MIXTURE_WIDTHS, vocab_size=V, latent_dropout=0.0)


def test_doc_on_the_last_layer_with_per_expert_masks_is_mos_bit_for_bit():
    mos = build("mos", latent_dropout=0.4, experts_per_layer="0 0 5")
    doc = build("doc", latent_dropout=0.4, experts_per_layer="0 0 5", latent_mask="per-expert")
    randomise(mos)
    doc.load_state_dict({**doc.state_dict(), **mos.state_dict()})
    states, target = make_states(MIXTURE_WIDTHS), torch.randint(V, (3, 4))
    results = []
    for layer in (mos, doc):
        torch.manual_seed(3)
        distribution = layer(states)
        torch.manual_seed(3)
        loss = layer(states, target).loss
        grads = torch.autograd.grad(loss, list(layer.parameters()))
        results.append([distribution.log_probs, distribution.mixture_weights, loss, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*results))
    assert not torch.equal(results[0][2], mos.eval()(states, target).loss)


def test_mos_has_per_expert_masks_and_doc_one_mask_by_default():
    states = make_states(MIXTURE_WIDTHS, num_rows=3, num_steps=4)
    for layer, num_masks in (("mos", 3 * 6), ("doc", 3)):
        mixture = build(layer, latent_dropout=0.5, experts_per_layer="0 0 6", widths=[40, 9, 8])
        kept = mixture.expert_hidden_states([torch.randn(3, 4, 40), *states.layers[1:]]).ne(0)
        assert torch.equal(kept, kept[:, :1].expand_as(kept))
        assert len({tuple(mask.tolist()) for mask in kept[:, 0].flatten(0, 1)}) == num_masks


def test_latent_vectors_are_linear_as_in_the_paper_where_asked_for():
    layer = randomise(build("doc", experts_per_layer="0 2 1", latent_activation="linear").double()).eval()
    states = make_states(MIXTURE_WIDTHS, dtype=torch.float64)
    k = [
        h @ weight.T + bias
        for h, linear in zip(states.layers[1:], layer.latent_projections)
        for weight, bias in zip(linear.weight.split(MIXTURE_WIDTHS[0]), linear.bias.split(MIXTURE_WIDTHS[0]))
    ]
    logits = torch.stack([k_j @ layer.projection.weight.T + layer.projection.bias for k_j in k], dim=-2)
    expected = plain_formulas.mixture(logits, plain_formulas.softmax(states.layers[-1] @ layer.prior.weight.T))
    assert max(float(k_j.detach().abs().max()) for k_j in k) > 1
    torch.testing.assert_close(layer(states).log_probs.exp(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("output_loss", ["fused", "plain"])
def test_in_the_warmup_doc_is_the_mixture_of_the_experts_of_the_last_layer(output_loss):
    doc = randomise(build("doc", experts_per_layer="1 2 3", expert_warmup=10, output_loss=output_loss))
    mos = build("mos", experts_per_layer="0 0 3")
    mos.latent_projections[0].load_state_dict(doc.latent_projections[-1].state_dict())
    mos.projection.load_state_dict(doc.projection.state_dict())
    mos.prior.weight.data = doc.prior.weight.data[3:]
    states, target = make_states(MIXTURE_WIDTHS), torch.randint(V, (3, 4))
    doc.set_num_updates(9)
    torch.testing.assert_close(doc(states).log_probs, mos(states).log_probs)
    scores = doc(states, target)
    torch.testing.assert_close(scores.loss, mos(states, target).loss)
    assert not scores.mixture_weights[..., :3].any()
    scores.loss.backward()
    assert not any(param.grad.any() for param in doc.latent_projections[:2].parameters())
    assert not doc.prior.weight.grad[:3].any() and doc.prior.weight.grad[3:].all()
    assert all(param.grad.isfinite().all() and param.grad.any() for param in doc.latent_projections[2].parameters())


def test_after_the_warmup_doc_is_itself_and_a_checkpoint_knows_whether_it_is_over():
    doc, loaded = (build("doc", experts_per_layer="1 2 3", expert_warmup=10) for _ in range(2))
    plain, states = build("doc", experts_per_layer="1 2 3"), make_states(MIXTURE_WIDTHS)
    plain.load_state_dict(doc.state_dict())
    for num_updates in (9, 10):
        doc.set_num_updates(num_updates)
        loaded.load_state_dict(doc.state_dict())
        loaded.set_num_updates(0)
        assert torch.equal(doc(states).log_probs, loaded(states).log_probs)
        assert torch.equal(doc(states).log_probs, plain(states).log_probs) == (num_updates == 10)
    plain.set_num_updates(0)
    saved, other = plain.state_dict(), build("doc", experts_per_layer="1 2 3", expert_warmup=10)
    other.load_state_dict(saved)
    other.set_num_updates(0)
    assert torch.equal(other(states).log_probs, plain(states).log_probs)


def test_an_average_over_the_end_of_the_warmup_has_ended_it():
    """Such as fairseq's of all weights, whose first after 10,000 updates holds a ten-thousandth of the flag."""
    doc, plain = build("doc", experts_per_layer="1 2 3", expert_warmup=10), build("doc", experts_per_layer="1 2 3")
    doc.load_state_dict({**plain.state_dict(), "warmed_up": torch.tensor(1e-4)})
    states = make_states(MIXTURE_WIDTHS)
    assert torch.equal(doc(states).log_probs, plain(states).log_probs)


def test_updates_of_others_end_no_warmup():
    doc = build("doc", experts_per_layer="1 2 3", expert_warmup=10).eval()
    doc.set_num_updates(10)
    assert doc.warmed_up == 0, "a gate is trained on it"
    doc.train().set_num_updates(10)
    assert doc.warmed_up == 1


def test_doc_starts_with_zero_latent_biases_and_mos_with_the_librarys():
    doc, mos = build("doc", experts_per_layer="2 2 2"), build("mos")
    assert all(not linear.bias.any() for linear in doc.latent_projections)
    assert all(linear.bias.all() for linear in mos.latent_projections)


@pytest.mark.parametrize("num_lower", [1, 2, 3])
def test_default_experts(num_lower):
    assert MixtureOfSoftmaxes.default_experts(num_lower + 1) == [0] * num_lower + [4]
    assert DirectOutputConnection.default_experts(num_lower + 1) == [0] * (num_lower - 1) + [1, 3]


@pytest.mark.parametrize("text, experts", [("2", [0, 0, 2]), ("2 1", [0, 2, 1]), ("0 2 1", [0, 2, 1])])
def test_a_short_list_of_experts_is_for_the_last_layers(text, experts):
    assert build("doc", experts_per_layer=text).experts_per_layer == experts


build_adversarial = partial(build_output_layer, widths=WIDTHS, vocab_size=VOCAB_SIZE)
EPSILON = 0.1
TARGET = torch.randint(VOCAB_SIZE, (3, 4), generator=torch.Generator().manual_seed(5))


def pair(name, epsilon):
    """The same layer without the flag and with it."""
    layers = [randomise(build_adversarial(name, **flags).double()) for flags in ({}, {"adversarial_epsilon": epsilon})]
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


@pytest.mark.parametrize("epsilon, training", [(EPSILON, False), (0.0, True)])
def test_evaluation_and_an_epsilon_of_zero_are_as_it_was_bit_for_bit(epsilon, training):
    plain, layer = (one.train(training) for one in pair("doc", epsilon))
    states = make_states(WIDTHS, dtype=torch.float64)
    assert all(torch.equal(x, y) for x, y in zip(results(layer, states), results(plain, states)))
    distributions = []
    for one in (plain, layer):
        torch.manual_seed(7)
        distributions.append(one(states).log_probs)
    assert torch.equal(*distributions)


def test_a_criterion_that_gives_no_targets_is_refused():
    layer = build_adversarial("tied", adversarial_epsilon=EPSILON).train()
    with pytest.raises(ValueError, match="--adversarial-epsilon 0.1 needs the targets: .*regularized_cross_entropy"):
        layer(make_states(WIDTHS))
