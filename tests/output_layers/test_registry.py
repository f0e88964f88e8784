"""What every registered output layer must satisfy, and the registry itself."""

import argparse
from argparse import Namespace
from dataclasses import fields

import pytest
import torch

from fairseq_plugins.output_layers.base import (
    OUTPUT_LAYERS,
    OutputLayer,
    add_output_layer_args,
    build_output_layer,
    register_output_layer,
)

WIDTHS = [8, 12, 8]
VOCAB_SIZE = 507

every_layer = pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))


def build(name, widths=WIDTHS, vocab_size=VOCAB_SIZE, **flags):
    shared = torch.nn.Parameter(torch.empty(vocab_size, widths[0]).uniform_(-0.5, 0.5))
    return build_output_layer(
        Namespace(output_layer=name, **flags), vocab_size=vocab_size, layer_widths=widths, shared_weight=shared
    )


def twice(layer, *calls):
    """Results of the calls, each with the same random masks."""
    results = []
    for call in calls:
        torch.manual_seed(7)
        results.append(layer(*call[0], **call[1]))
    return results


@every_layer
@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("training", [True, False])
def test_probabilities_sum_to_one(name, scale, training, make_states):
    layer = build(name).train(training)
    log_probs, _ = layer(make_states(WIDTHS, scale=scale))
    assert log_probs.shape == (3, 4, VOCAB_SIZE) and log_probs.dtype == torch.float32
    sums = log_probs.exp().double().sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_the_loss_of_a_target_is_its_log_probability(name, training, make_states):
    layer, states = build(name).train(training), make_states(WIDTHS)
    target = torch.randint(VOCAB_SIZE, (3, 4))
    (log_probs, _), (loss, extra) = twice(layer, ((states,), {}), ((states, target), {}))
    expected = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(extra["nll"], loss.detach()) and not extra["nll"].requires_grad


@every_layer
@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_spreads_a_share_of_the_target(name, smoothing, make_states):
    layer, states = build(name), make_states(WIDTHS)
    target = torch.randint(VOCAB_SIZE, (3, 4))
    (log_probs, _), (loss, extra) = twice(layer, ((states,), {}), ((states, target), {"label_smoothing": smoothing}))
    share = torch.full_like(log_probs, smoothing / VOCAB_SIZE).scatter_add(
        -1, target.unsqueeze(-1), torch.full((3, 4, 1), 1 - smoothing)
    )
    torch.testing.assert_close(loss.double(), -(share.double() * log_probs.double()).sum(-1), rtol=1e-6, atol=1e-6)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(extra["nll"], nll.detach(), rtol=1e-6, atol=1e-6)


@every_layer
def test_every_parameter_gets_a_gradient_from_the_loss(name, make_states):
    layer = build(name)
    layer(make_states(WIDTHS), torch.randint(VOCAB_SIZE, (3, 4)))[0].sum().backward()
    assert [n for n, p in layer.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_layer
def test_half_precision_gives_log_probs_in_float32(name, make_states):
    layer = build(name).bfloat16().eval()
    states = make_states(WIDTHS, dtype=torch.bfloat16)
    log_probs, _ = layer(states)
    loss, _ = layer(states, torch.zeros(3, 4, dtype=torch.long))
    assert log_probs.dtype == loss.dtype == torch.float32


@every_layer
def test_evaluation_is_deterministic(name, make_states):
    layer, states = build(name).eval(), make_states(WIDTHS)
    assert torch.equal(layer(states)[0], layer(states)[0])


def test_the_layers_of_the_papers_are_registered():
    assert {"tied", "full", "mos", "doc"} <= set(OUTPUT_LAYERS)
    assert all(OUTPUT_LAYERS[name].name == name for name in OUTPUT_LAYERS)


def test_a_name_is_registered_once():
    with pytest.raises(AssertionError, match="tied"):
        register_output_layer("tied")(type("Other", (OutputLayer,), {}))
    assert OUTPUT_LAYERS["tied"].__name__ == "TiedSoftmax"


def test_flags_of_all_layers_are_added_without_defaults():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as the host's model group
    add_output_layer_args(parser)
    assert vars(parser.parse_args([])) == {}
    declared = {field.name for layer in OUTPUT_LAYERS.values() for field in fields(layer.Options)} - {"_name"}
    assert declared <= {action.dest for action in parser._actions}


@every_layer
def test_every_layer_is_a_choice(name):
    parser = argparse.ArgumentParser()
    add_output_layer_args(parser)
    assert parser.parse_args(["--output-layer", name]).output_layer == name


def test_an_unknown_layer_is_refused():
    with pytest.raises(ValueError, match="--output-layer soft: choose one of .*doc"):
        build("soft")


def test_flags_of_another_layer_are_refused(build_lm):
    with pytest.raises(ValueError, match="--experts-per-layer: not a flag of --output-layer tied"):
        build_lm("lstm_lm_awd", 23, experts_per_layer="0 0 0 4")


def test_another_layer_than_the_preset_names_drops_the_options_it_does_not_have(build_lm):
    with torch.device("meta"):
        model = build_lm("lstm_lm_doc_ptb", 23, output_layer="full")
    assert type(model.decoder.output).__name__ == "FullSoftmax"
