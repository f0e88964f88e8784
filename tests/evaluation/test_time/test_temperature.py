"""Temperature: the logits of every softmax divided by it, and nothing else."""

import pytest
import torch
from builders import build_tiny_gated_lm, tiny_base_flags
from example_layers import OwnSoftmax

from fairseq_plugins.evaluation.test_time.temperature import softmax_temperature
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

V = 23


def by_hand(layer, states, temperature, gate=1.0):
    """Probabilities (B, T, V): sum_j pi_j softmax(g (L k_j + b) / T)."""
    latents, log_prior = layer.mixture(states)
    logits = layer.projection(latents) * gate / temperature
    return (torch.softmax(logits, dim=-1) * log_prior.exp().unsqueeze(-1)).sum(dim=-2)


@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
@pytest.mark.parametrize("with_gradients, bias", [(True, "on"), (False, "on"), (False, "off")])
def test_every_layer_divides_its_logits(name, with_gradients, bias, build_tiny_lm):
    model, tokens = build_tiny_lm(name, output_bias=bias).double().eval(), torch.randint(V, (2, 9))
    target = tokens.flip(1)
    with torch.set_grad_enabled(with_gradients), softmax_temperature([model], temperature=0.7):
        log_probs, extra = model(tokens)
        loss, of_targets = model(tokens, target=target)
    with torch.no_grad():
        expected = by_hand(model.decoder.output, extra["states"], 0.7)
        plain = model(tokens)[0]
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-10, atol=1e-12)
    nll = -expected.log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(of_targets["scores"].nll, nll, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(loss.detach(), nll.sum(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(plain.exp(), by_hand(model.decoder.output, extra["states"], 1).detach())


def test_a_block_within_a_block_leaves_the_outer_temperature(build_tiny_lm):
    model, tokens = build_tiny_lm("tied").eval(), torch.randint(V, (2, 9))
    with softmax_temperature([model], temperature=0.7):
        expected = model(tokens)[0]
        with softmax_temperature([model], temperature=2.0):
            assert not torch.equal(model(tokens)[0], expected)
        assert torch.equal(model(tokens)[0], expected)


@pytest.mark.parametrize("num_bases", [1, 2])
def test_a_gate_multiplies_before_it(num_bases, tokens, score_text):
    model = build_tiny_gated_lm(*[tiny_base_flags("mos"), tiny_base_flags("tied")][:num_bases]).double().eval()
    found = score_text([model], tokens, temperature=1.3)
    with torch.no_grad():
        inputs, target = tokens[None, :-1], tokens[None, 1:]
        decoder = model.decoder
        read = [
            member.read(inputs, layers, incremental=False)[0]
            for member, layers in zip(decoder.members, decoder.initial_state(1)["members"])
        ]
        gate = decoder.gate(model(inputs)[1]["states"], {})[0]
        values = torch.sigmoid(gate.features @ gate.weight.T + gate.bias).unsqueeze(-2)
        probs = sum(by_hand(member.output, states, 1.3, values) for member, states in zip(decoder.members, read))
    expected = (probs / num_bases).log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
def test_temperature_one_is_static_evaluation(name, build_tiny_lm, tokens, score_text):
    model = build_tiny_lm(name)
    static = score_text([model], tokens)
    assert torch.equal(score_text([model], tokens, temperature=1.0), static)
    assert not torch.allclose(score_text([model], tokens, temperature=0.9), static, atol=1e-3)
    assert torch.equal(score_text([model], tokens), static)


def test_gradients_are_those_of_the_divided_logits(build_tiny_lm):
    model, tokens = build_tiny_lm("doc", experts_per_layer="1 0 2").double().eval(), torch.randint(V, (2, 9))
    target = tokens.flip(1)
    with softmax_temperature([model], temperature=0.7):
        fused, extra = model(tokens, target=target)
        plain = -model(tokens)[0].gather(-1, target.unsqueeze(-1)).sum()
    ours, theirs = (torch.autograd.grad(one, list(model.parameters())) for one in (fused, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_a_layer_without_logits_is_refused(build_tiny_lm, tokens, score_text, make_dictionary):
    model = build_tiny_lm("full")
    model.decoder.output = OwnSoftmax(
        dictionary=make_dictionary(V), layer_widths=[8, 12, 8], shared_weight=None, options=None
    )
    with pytest.raises(ValueError, match="--temperature 0.9: --output-layer own has no logits to divide"):
        score_text([model], tokens, temperature=0.9)
    assert score_text([model], tokens, temperature=1).isfinite().all()
