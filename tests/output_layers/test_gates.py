"""Gates on the logits: every gate, those that exist only in the tests among them, with every output layer."""

import argparse
from argparse import Namespace
from dataclasses import make_dataclass

import example_gates
import plain_formulas
import pytest
import torch
from builders import build_random_output_layer, make_dictionary, make_states
from fairseq.dataclass import FairseqDataclass
from torch import nn

from fairseq_plugins.modules.recurrent_state import state_tensors
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, build_output_layer
from fairseq_plugins.output_layers.gate import OUTPUT_GATES

WIDTHS, V, B, T = [8, 12, 8], 101, 3, 4

every_layer = pytest.mark.parametrize("name", sorted(name for name, layer in OUTPUT_LAYERS.items() if layer.takes_gate))
every_gate = pytest.mark.parametrize("gate", sorted({*OUTPUT_GATES, *example_gates.EXAMPLES} - {"none"}))


@pytest.fixture(autouse=True)
def gates():
    with example_gates.registered():
        yield


def build(name, gate="none", **flags):
    return build_random_output_layer(name, widths=WIDTHS, vocab_size=V, output_gate=gate, **flags)


@pytest.fixture
def states():
    states = make_states(WIDTHS, B, T, dtype=torch.float64)
    for h in states.layers:
        h.requires_grad_()
    return states


def by_hand(layer, states):
    """Logits g (L k_j + b), g = sigmoid(F U' + c), of the softmaxes, and pi."""
    gate, _ = layer.gate(states, layer.gate.initial_state(states.layers[0]))
    g = 1 / (1 + (-gate.features @ gate.weight.T - gate.bias).exp())
    latents, log_prior = layer.mixture(states)
    logits = latents @ layer.projection.label_matrix().T + layer.projection.bias
    return g.unsqueeze(-2) * logits, log_prior.exp()


@every_layer
@every_gate
@pytest.mark.parametrize("output_loss", ["fused", "plain"])
@pytest.mark.parametrize("training", [True, False])
def test_loss_gradients_and_log_probs_are_those_of_the_gated_logits(name, gate, output_loss, training, states):
    layer = build(name, gate, output_loss=output_loss).train(training)
    target, weights = torch.randint(V, (B, T)), torch.rand(B, T).double()
    weights[1, 2:] = 0
    torch.manual_seed(5)
    scores = layer(states, target, token_weights=weights, label_smoothing=0.1)
    torch.manual_seed(5)
    gated, prior = by_hand(layer, states)
    log_p = plain_formulas.mixture(gated, prior).log()
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    expected = ((0.9 * nll - 0.1 * plain_formulas.expert_mean(gated, prior)) * weights).sum()
    torch.testing.assert_close(scores.loss, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(scores.nll, nll.detach().masked_fill(weights == 0, 0), rtol=1e-11, atol=1e-11)
    inputs = [*layer.parameters(), *states.layers]
    ours, theirs = (torch.autograd.grad(y, inputs, materialize_grads=True) for y in (scores.loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for with_gradients in (True, False):
        torch.manual_seed(5)
        with torch.set_grad_enabled(with_gradients):
            log_probs = layer(states).log_probs
        torch.testing.assert_close(log_probs.detach(), log_p.detach(), rtol=1e-11, atol=1e-11)


@every_layer
@every_gate
def test_every_parameter_of_a_gate_learns(name, gate, states):
    layer = build(name, gate)
    layer(states, torch.randint(V, (B, T))).loss.backward()
    assert len(list(layer.gate.parameters())) >= 2
    assert [key for key, value in layer.gate.named_parameters() if value.grad is None or not value.grad.any()] == []


@every_layer
@every_gate
def test_a_gate_of_ones_changes_nothing(name, gate, states):
    plain, gated = build(name).eval(), build(name, gate).eval()
    gated.load_state_dict({**gated.state_dict(), **plain.state_dict(), "gate.gate_name": gated.gate.gate_name})
    with torch.no_grad():
        nn.init.zeros_(gated.gate.linear.weight)
        nn.init.constant_(gated.gate.linear.bias, 50.0)
    target = torch.randint(V, (B, T))
    torch.testing.assert_close(gated(states).log_probs, plain(states).log_probs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gated(states, target).loss, plain(states, target).loss, rtol=1e-12, atol=1e-12)


def part(states, start, end):
    """The states of some steps."""
    cut = [h[:, start:end] for h in states.layers]
    return type(states)(layers=cut, top=cut[-1], tokens=states.tokens[:, start:end])


@every_layer
@every_gate
@pytest.mark.parametrize("scoring", [True, False])
def test_windows_that_hand_their_state_on_are_one_pass(name, gate, scoring, states):
    layer, target = build(name, gate).eval(), torch.randint(V, (B, T))
    whole = layer(states, target if scoring else None)
    gate_state, parts = None, []
    for start, end in ((0, 1), (1, 3), (3, T)):
        scores = layer(part(states, start, end), target[:, start:end] if scoring else None, gate_state=gate_state)
        gate_state = scores.gate_state
        parts.append(scores.nll if scoring else scores.log_probs)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole.nll if scoring else whole.log_probs)
    torch.testing.assert_close(gate_state, whole.gate_state)


def test_the_trace_is_a_state_and_a_gate_that_keeps_nothing_has_none(states):
    for gate, num_tensors in (("none", 0), ("top", 0), ("trace", 1)):
        layer = build("tied", gate)
        assert len(list(state_tensors(layer(states).gate_state))) == num_tensors
        assert len(list(state_tensors(layer.gate.initial_state(states.layers[0])))) == num_tensors
    (trace,) = state_tensors(layer(states).gate_state)
    scaled = layer.gate.scale * states.layers[0]
    torch.testing.assert_close(trace, sum(0.5 ** (T - 1 - t) * scaled[:, t] for t in range(T)))


# flags and checkpoints


def test_without_a_gate_of_its_own_the_flag_has_one_value():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    OUTPUT_GATES.add_args(parser)
    assert vars(parser.parse_args([])) == {}
    assert parser.parse_args(["--output-gate", "none"]).output_gate == "none"
    with pytest.raises(SystemExit):
        parser.parse_args(["--output-gate", "closed"])


def test_what_names_no_gate_has_none():
    args = Namespace(output_layer="full")
    layer = build_output_layer(args, dictionary=make_dictionary(V), layer_widths=WIDTHS, shared_weight=None)
    assert layer.gate.name == "none" and args.output_gate == "none" and not list(layer.gate.parameters())


def test_options_of_a_gate():
    assert build("tied", "trace").gate.decay == 0.5 and build("tied", "trace", trace_decay=0.9).gate.decay == 0.9
    for gate in ("none", "top"):
        with pytest.raises(
            ValueError, match=f"^--trace-decay: not a flag of --output-gate {gate}; leave it out or take"
        ):
            build("tied", gate, trace_decay=0.9)


def test_an_unknown_gate_is_refused():
    with pytest.raises(
        ValueError, match="--output-gate closed: choose one of iog, iog-hidden, iog-lstm, none, top, trace"
    ):
        build("tied", "closed")


@pytest.mark.parametrize("option", ["trace_decay", "label_depth", "major_proportions", "embed_dim", "output_layer"])
def test_a_gate_that_declares_an_option_of_another_part_is_refused(option):
    class OtherGate(example_gates.TopGate):
        Options = make_dataclass("OtherOptions", [(option, int, 1)], bases=(FairseqDataclass,))

    with pytest.raises(ValueError, match=f"^--{option.replace('_', '-')} is declared by .* and by .*OtherOptions"):
        OUTPUT_GATES.register("other")(OtherGate)
    assert "other" not in OUTPUT_GATES


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ValueError, match="^--output-gate trace is registered twice: give TopGate another name"):
        OUTPUT_GATES.register("trace")(example_gates.TopGate)


def test_a_layer_without_logits_refuses_a_gate(monkeypatch):
    class Uniform(OutputLayer):
        name = "uniform"

        def __init__(self, **unused):
            super().__init__()

    monkeypatch.setitem(OUTPUT_LAYERS, "uniform", Uniform)
    assert build("uniform").gate.name == "none"
    with pytest.raises(
        ValueError, match="^--output-gate top: --output-layer uniform has no logits .* leave the gate out"
    ):
        build("uniform", "top")


@pytest.mark.parametrize("saved, built", [("trace", "top"), ("none", "top"), ("trace", "none")])
def test_a_checkpoint_of_another_gate_is_refused_with_both_names(saved, built):
    with pytest.raises(ValueError, match=f"trained with --output-gate {saved}, this model has --output-gate {built}"):
        build("tied", built).load_state_dict(build("tied", saved).state_dict())


def test_a_checkpoint_from_before_there_were_gates_is_loaded():
    layer = build("tied")
    weights = {key: value for key, value in build("tied").state_dict().items() if not key.startswith("gate.")}
    layer.load_state_dict(weights)
    assert torch.equal(layer.projection.weight, weights["projection.weight"])
