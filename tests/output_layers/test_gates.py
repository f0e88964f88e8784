"""Gates on the logits: every gate, those that exist only in the tests among them, with every output layer."""

from argparse import Namespace

import plain_formulas
import pytest
import torch
from assertions import assert_scores
from builders import build_random_output_layer, make_dictionary, make_states, randomise
from example_parts import EXAMPLE_GATES
from torch import nn

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer
from fairseq_plugins.output_layers.gates import OUTPUT_GATES

pytestmark = pytest.mark.usefixtures("gates_of_the_examples")

WIDTHS, V, B, T = [8, 12, 8], 101, 3, 4

GATES = sorted({*OUTPUT_GATES, *EXAMPLE_GATES} - {"none"})
every_layer_and_gate = pytest.mark.parametrize(
    "name, gate",
    [(name, "trace") for name, layer in sorted(OUTPUT_LAYERS.items()) if layer.takes_gate]
    + [(name, gate) for name in ("tied", "doc") for gate in GATES if gate != "trace"],
)
"""A layer sees nothing of a gate but its values, so that these pairs find what is wrong with a part alone."""


def build(name, gate="none", **flags):
    return build_random_output_layer(name, widths=WIDTHS, vocab_size=V, output_gate=gate, **flags)


@pytest.fixture
def states():
    states = make_states(WIDTHS, B, T, dtype=torch.float64)
    states.tokens = torch.randint(V, (B, T))
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


@every_layer_and_gate
@pytest.mark.parametrize("output_loss, training", [("fused", True), ("plain", False)])
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
    assert_scores(layer, states, scores, loss=expected, nll=nll.masked_fill(weights == 0, 0), log_p=log_p)


# flags


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


DIM = 6
KINDS = ["iog", "iog-hidden", "iog-lstm"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def build_gate(kind, vocab_size=V, widths=WIDTHS, **flags):
    args = Namespace(output_gate=kind, **flags)
    return OUTPUT_GATES.build(args, dictionary=make_dictionary(vocab_size), layer_widths=widths)


@every_kind
@pytest.mark.parametrize("limit", [None, 0.01])
def test_matrices_start_uniformly_and_biases_at_zero(kind, limit):
    gate = build_gate(kind, 300, **({} if limit is None else {"gate_init_range": limit}))
    limit = limit or 0.05
    for name, param in gate.named_parameters():
        if param.dim() == 1:
            assert not param.any(), name
        else:
            assert 0.98 * limit < param.abs().max() <= limit, name
            assert param.std().item() == pytest.approx(2 * limit / 12**0.5, rel=0.05), name


def features_by_hand(gate, states, mask):
    f = gate.embedding.weight[states.tokens] * mask
    if gate.name == "iog-hidden":
        f = torch.cat([states.layers[-1], f], dim=-1)
    if gate.name == "iog-lstm":
        zeros = torch.zeros(B, DIM, dtype=torch.float64)
        f, _, _ = plain_formulas.lstm(f, zeros, zeros, *gate.lstm.parameters())
    return f


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_features_and_their_gradients_are_those_of_the_equations(kind, training, states, monkeypatch):
    mask = torch.randint(2, (B, T, DIM)).double() / (1 - 0.5) if training else 1.0
    gate = randomise(build_gate(kind, gate_dim=DIM).double()).train(training)
    if training:
        monkeypatch.setattr(gate.dropout, "mask", lambda like, size: mask)
    (features, weight, bias), _ = gate(states, gate.initial_state(states.layers[0]))
    expected = features_by_hand(gate, states, mask)
    assert weight is gate.linear.weight and bias is gate.linear.bias
    torch.testing.assert_close(features, expected, rtol=1e-11, atol=1e-11)
    inputs, upstream = [*gate.parameters(), *states.layers], torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(f, inputs, upstream, materialize_grads=True) for f in (features, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_the_mask_of_the_embedding_is_fresh_at_every_step_row_and_feature():
    num_rows, num_steps, dim = 20, 35, 300
    gate = build_gate("iog", gate_dim=dim)
    nn.init.ones_(gate.embedding.weight)
    states = make_states(WIDTHS, num_rows, num_steps)
    first, second = (gate(states, {})[0].features for _ in range(2))
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert (first == 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    for dim in range(3):  # along no dimension do masks agree more often than by chance
        assert (first == first.roll(1, dims=dim)).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert (first == second).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert gate.eval()(states, {})[0].features.eq(1).all()


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"gate_dim": 0}, "--gate-dim 0: give at least 1"),
        ({"gate_dropout": 1.0}, "--gate-dropout 1.0: a dropout rate"),
        ({"gate_init_range": 0.0}, "--gate-init-range 0.0: give a value above 0"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_flag(flags, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build_gate("iog", **flags)
