"""MoS and DOC against the equations and each other, and the adversarial margin of any layer."""

from functools import partial

import pytest
import torch
from builders import build_output_layer, make_states, randomise
from plain_formulas import mixture_loss
from test_base import VOCAB_SIZE, WIDTHS, every_projected_layer

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


@pytest.mark.parametrize(
    "name, text, experts",
    [
        ("mos", None, [0, 0, 4]),
        ("doc", None, [0, 1, 3]),
        ("doc", "2", [0, 0, 2]),
        ("doc", "2 1", [0, 2, 1]),
        ("doc", "0 2 1", [0, 2, 1]),
    ],
)
def test_a_short_list_of_experts_is_for_the_last_layers(name, text, experts):
    assert build(name, experts_per_layer=text).experts_per_layer == experts


EPSILON = 0.1
build_adversarial = partial(build_output_layer, widths=WIDTHS, vocab_size=VOCAB_SIZE, adversarial_epsilon=EPSILON)


@every_projected_layer
@pytest.mark.parametrize("training, smoothing", [(True, 0.0), (True, 0.1), (False, 0.0)])
def test_training_alone_has_the_loss_of_lowered_targets(name, training, smoothing):
    layer = randomise(build_adversarial(name).double()).train(training)
    states, target = make_states(WIDTHS, dtype=torch.float64), torch.randint(VOCAB_SIZE, (3, 4))
    torch.manual_seed(7)
    scores = layer(states, target, label_smoothing=smoothing)
    torch.manual_seed(7)
    latents, log_prior = layer.mixture(states)
    weights, epsilon = (layer.projection.label_matrix(), layer.projection.bias), EPSILON if training else 0.0
    losses, nll = mixture_loss(latents, log_prior.exp(), *weights, target, smoothing, epsilon=epsilon)
    torch.testing.assert_close(scores.nll, nll.detach(), rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad(loss, list(layer.parameters())) for loss in (scores.loss, losses.sum())]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(scores.loss, losses.sum(), rtol=1e-9, atol=1e-12)


def test_a_criterion_that_gives_no_targets_is_refused():
    layer = build_adversarial("tied").train()
    with pytest.raises(ValueError, match="--adversarial-epsilon 0.1 needs the targets: .*regularized_cross_entropy"):
        layer(make_states(WIDTHS))
