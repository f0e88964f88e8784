"""The Input-to-Output Gate in its three kinds, against their equations.

What holds for every gate is in test_gates.py.
"""

from argparse import Namespace

import plain_formulas
import pytest
import torch
from builders import build_random_output_layer, make_dictionary, make_states
from torch import nn

from fairseq_plugins.output_layers.gate import OUTPUT_GATES, build_output_gate

WIDTHS, V, B, T, DIM = [8, 12, 8], 101, 3, 5, 6
PTB, WT2, RHN_WIDTH = 10_000, 33_278, 890
KINDS = ["iog", "iog-hidden", "iog-lstm"]
COUNTS = [
    # gate, vocabulary, width of the last layer, added parameters
    ("iog", PTB, RHN_WIDTH, 6_010_000),
    ("iog", WT2, 650, 20_000_078),
    ("iog-hidden", PTB, RHN_WIDTH, 6_010_000 + PTB * RHN_WIDTH),
    ("iog-lstm", PTB, RHN_WIDTH, 6_010_000 + 721_200),
]

every_kind = pytest.mark.parametrize("kind", KINDS)


def build_gate(kind, vocab_size=V, widths=WIDTHS, **flags):
    args = Namespace(output_gate=kind, **flags)
    return build_output_gate(args, dictionary=make_dictionary(vocab_size), layer_widths=widths)


@pytest.fixture
def states():
    states = make_states(WIDTHS, B, T, dtype=torch.float64)
    states.tokens = torch.randint(V, (B, T))
    for h in states.layers:
        h.requires_grad_()
    return states


def test_all_kinds_are_registered():
    assert set(KINDS) <= set(OUTPUT_GATES)


@pytest.mark.parametrize("kind, vocab_size, width, expected", COUNTS)
def test_parameter_count(kind, vocab_size, width, expected):
    with torch.device("meta"):
        gate = build_gate(kind, vocab_size, [650, width])
    assert sum(param.numel() for param in gate.parameters()) == expected


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


@every_kind
def test_a_new_gate_halves_every_logit(kind, states):
    gate = build_gate(kind).double().eval()
    given, _ = gate(states, gate.initial_state(states.layers[0]))
    values = torch.sigmoid(given.features @ given.weight.T + given.bias)
    assert values.shape == (B, T, V) and (values - 0.5).abs().max() < 0.1


def by_hand(layer, states, mask):
    """P = sum_j pi_j softmax(g * (L k_j + b)), g = sigmoid(W_g f + b_g), with f by the equations of each kind."""
    gate = layer.gate
    f = gate.embedding.weight[states.tokens] * mask
    if gate.name == "iog-hidden":
        f = torch.cat([states.layers[-1], f], dim=-1)
    if gate.name == "iog-lstm":
        zeros = torch.zeros(B, DIM, dtype=torch.float64)
        f, _, _ = plain_formulas.lstm(f, zeros, zeros, *gate.lstm.parameters())
    latents, log_prior = layer.mixture(states)
    logits = latents @ layer.projection.weight.T + layer.projection.bias
    gated = plain_formulas.gated(logits, f, gate.linear.weight, gate.linear.bias)
    return plain_formulas.mixture(gated, log_prior.exp())


@every_kind
@pytest.mark.parametrize("name", ["tied", "full", "mos"])
@pytest.mark.parametrize("training", [True, False])
def test_loss_and_gradients_are_those_of_the_equations(kind, name, training, states, monkeypatch):
    mask = torch.randint(2, (B, T, DIM)).double() / (1 - 0.5) if training else 1.0
    layer = build_random_output_layer(name, widths=WIDTHS, vocab_size=V, output_gate=kind, gate_dim=DIM)
    layer.train(training)
    if training:
        monkeypatch.setattr(layer.gate.dropout, "mask", lambda like, size: mask)
        for part in layer.modules():
            if part is not layer.gate.dropout and hasattr(part, "rate"):
                part.rate = 0.0
    target = torch.randint(V, (B, T))
    scores, expected = layer(states, target), by_hand(layer, states, mask)
    nll = -expected.log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(scores.loss, nll.sum(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(scores.nll, nll.detach(), rtol=1e-11, atol=1e-11)
    inputs = {**dict(layer.named_parameters()), **{f"h{n}": h for n, h in enumerate(states.layers)}}
    ours, theirs = (
        torch.autograd.grad(y, list(inputs.values()), materialize_grads=True) for y in (scores.loss, nll.sum())
    )
    ours, theirs = (dict(zip(inputs, gradients)) for gradients in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(layer(states).log_probs, expected.log(), rtol=1e-11, atol=1e-11)


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


def test_the_rate_is_that_of_the_flag(states):
    gate = build_gate("iog", gate_dropout=0.2, gate_dim=400)
    nn.init.ones_(gate.embedding.weight)
    features = gate(states, {})[0].features
    assert (features == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert features.max().item() == pytest.approx(1 / 0.8)


def test_the_plain_gate_sees_the_input_word_alone_and_the_others_see_more(states):
    others = make_states(WIDTHS, B, T, dtype=torch.float64)
    others.tokens = states.tokens.clone()
    others.tokens[:, 0] = (states.tokens[:, 0] + 1) % V
    for kind, changed_by_words, changed_by_layers in (
        ("iog", False, False),
        ("iog-hidden", False, True),
        ("iog-lstm", True, False),
    ):
        gate = build_gate(kind).double().eval()
        state = gate.initial_state(states.layers[0])
        first, second = (gate(given, state)[0].features[:, 1:] for given in (states, others))
        assert torch.equal(first, second) != (changed_by_words or changed_by_layers), kind


@every_kind
@pytest.mark.parametrize(
    "flags, told",
    [
        ({"gate_dim": 0}, "--gate-dim 0: give at least 1"),
        ({"gate_dropout": 1.0}, "--gate-dropout 1.0: a dropout rate"),
        ({"gate_init_range": 0.0}, "--gate-init-range 0.0: give a value above 0"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_flag(kind, flags, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        build_gate(kind, **flags)


def test_flags_of_a_gate_are_refused_without_one():
    with pytest.raises(ValueError, match="^--gate-dim: not a flag of --output-gate none; leave it out"):
        build_gate("none", gate_dim=5)
