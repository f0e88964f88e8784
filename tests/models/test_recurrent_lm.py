"""The recurrent language model as the host builds and calls it."""

import argparse
import math

import plain_formulas
import pytest
import torch

from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

V, B, T = 23, 3, 6

every_output_layer = pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))


@pytest.fixture
def tokens():
    return torch.randint(V, (B, T))


def zero_state(model, dtype=torch.float64):
    return [(torch.zeros(B, layer.hidden_size, dtype=dtype),) * 2 for layer in model.decoder.stack.layers]


def layers_by_hand(model, tokens, state):
    layers = [model.decoder.embedding.weight[tokens]]
    for layer, (h, c) in zip(model.decoder.stack.layers, state):
        layers.append(plain_formulas.recurrent(layer, layers[-1], h, c, layers[0])[0])
    return layers


@pytest.mark.parametrize(
    "name, flags",
    [
        ("tied", {}),
        ("full", {"hidden_sizes": "12 6"}),
        ("mos", {"experts_per_layer": "0 0 3", "hidden_sizes": "12 6"}),
        ("doc", {"experts_per_layer": "1 2 2", "hidden_sizes": "12 6"}),
    ],
)
@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_the_distribution_is_that_of_the_equations(name, flags, cell, build_tiny_lm, tokens):
    model = build_tiny_lm(name, rnn_cell=cell, **flags).double()
    expected = plain_formulas.output_probs(model.decoder.output, layers_by_hand(model, tokens, zero_state(model)))
    torch.testing.assert_close(model(tokens)[0].exp(), expected, rtol=1e-11, atol=1e-13)


@every_output_layer
def test_with_a_target_the_output_is_its_loss(name, build_tiny_lm, tokens):
    model, target = build_tiny_lm(name), torch.randint(V, (B, T))
    log_probs, (loss, extra) = model(tokens)[0], model(tokens, target=target)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).detach()
    torch.testing.assert_close(extra["scores"].nll, nll, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(loss.detach(), nll.sum(), rtol=1e-6, atol=1e-6)
    assert not extra["scores"].nll.requires_grad


@every_output_layer
def test_token_weights_and_label_smoothing_reach_the_output_layer(name, build_tiny_lm, tokens):
    model, target, weights = build_tiny_lm(name).double(), torch.randint(V, (B, T)), torch.rand(B, T).double()
    weights[1] = 0
    log_probs = model(tokens)[0]
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    expected = ((0.8 * nll - 0.2 * log_probs.mean(-1)) * weights).sum()
    loss, extra = model(tokens, target=target, token_weights=weights, label_smoothing=0.2)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(extra["scores"].nll != 0, weights != 0)


@every_output_layer
def test_the_hosts_normalised_probabilities_are_the_models(name, build_tiny_lm, tokens):
    net_output = build_tiny_lm(name)(tokens)
    model = build_tiny_lm(name)
    torch.testing.assert_close(
        model.get_normalized_probs(net_output, log_probs=True), net_output[0], rtol=1e-6, atol=1e-6
    )
    sums = model.get_normalized_probs(net_output, log_probs=False).sum(-1)
    torch.testing.assert_close(sums, torch.ones(B, T), rtol=0, atol=1e-5)
    assert net_output[1]["attn"] == [None]


@every_output_layer
def test_every_parameter_gets_a_gradient(name, build_tiny_lm, tokens):
    model = build_tiny_lm(name)
    model(tokens, target=torch.randint(V, (B, T)))[0].backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_states_hold_the_input_embedding_and_all_layers(build_tiny_lm, tokens):
    model = build_tiny_lm("tied").double()
    states = model(tokens)[1]["states"]
    torch.testing.assert_close(states.layers, layers_by_hand(model, tokens, zero_state(model)), rtol=1e-12, atol=1e-12)
    assert torch.equal(states.top, states.layers[-1]) and torch.equal(states.tokens, tokens)


def test_each_dropout_acts_at_its_place(build_tiny_lm, tokens):
    rates = dict(dropout_embedding=0.1, dropout_input=0.2, dropout_hidden=0.3, dropout_output=0.4, dropout_weight=0.5)
    decoder = build_tiny_lm("tied", **rates).decoder
    assert decoder.embedding.row_dropout == 0.1
    assert decoder.input_dropout.rate == 0.2
    assert [dropout.rate for dropout in decoder.stack.dropouts] == [0.3, 0.4]
    assert [layer.weight_dropout for layer in decoder.stack.layers] == [0.5, 0.5]


def test_input_dropout_is_locked_and_the_stack_reads_it(build_tiny_lm, tokens):
    model = build_tiny_lm("doc", dropout_input=0.5)
    states = model(tokens)[1]["states"]
    mask = states.layers[0] / model.decoder.embedding.weight[tokens]
    assert (mask == 0).any() and torch.allclose(mask, mask[:, :1].expand_as(mask))
    torch.testing.assert_close(model.decoder.stack(states.layers[0]).top, states.top, rtol=1e-6, atol=1e-6)


def test_the_tied_output_matrix_is_not_masked(build_tiny_lm, tokens):
    model = build_tiny_lm("tied", dropout_embedding=0.9).double()
    log_probs, extra = model(tokens)
    dropped = extra["states"].layers[0].eq(0).all(-1)
    assert dropped.any()
    expected = plain_formulas.output_probs(model.decoder.output, extra["states"].layers)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-11, atol=1e-13)


# streams


@every_output_layer
@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_windows_of_a_stream_are_one_long_sequence(name, cell, build_tiny_lm, tokens):
    model = build_tiny_lm(name, rnn_cell=cell).double()
    whole = model(tokens)[0]
    first = model(tokens[:, :2], stream="text", position=0)[0]
    second = model(tokens[:, 2:5], stream_start=False)[0]
    third = model(tokens[:, 5:], stream_start=False)[0]
    torch.testing.assert_close(torch.cat([first, second, third], dim=1), whole, rtol=1e-11, atol=1e-11)


def test_a_new_stream_starts_from_zero(build_tiny_lm, tokens):
    model = build_tiny_lm("tied")
    expected = model(tokens)[0]
    model(torch.randint(V, (B, T)), stream="text", position=0)
    assert not torch.equal(model(tokens, stream_start=False)[0], expected)
    assert torch.equal(model(tokens, stream="text", position=0)[0], expected)


def test_separate_sequences_start_from_zero_and_leave_the_streams_alone(build_tiny_lm, tokens):
    model, other = build_tiny_lm("tied"), build_tiny_lm("tied")
    for lm in (model, other):
        lm(tokens, stream="text", position=0)
    fresh = build_tiny_lm("tied")(tokens)[0]
    assert torch.equal(model(tokens)[0], fresh)
    assert torch.equal(model(tokens, stream_start=False)[0], other(tokens, stream_start=False)[0])


def test_an_evaluation_in_mid_stream_leaves_the_training_stream_untouched(build_tiny_lm, tokens):
    model, undisturbed = build_tiny_lm("tied"), build_tiny_lm("tied")
    for lm in (model, undisturbed):
        lm.train()(tokens, stream="text", position=0)
    model.eval()
    assert torch.equal(model(tokens[:1], stream_start=False)[0], build_tiny_lm("tied")(tokens[:1])[0])
    for start in (True, False):
        model(torch.randint(V, (5, T)), stream_start=start)
    outputs = [lm.train()(tokens, stream_start=False)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs)


def test_no_gradient_crosses_windows_of_a_stream(build_tiny_lm, tokens):
    model = build_tiny_lm("tied")
    model(tokens, stream="text", position=0)
    second = torch.full((B, 1), 4)
    states = model(second, stream_start=False)[1]["states"]
    states.top.sum().backward()
    rows = model.decoder.embedding.weight.grad.abs().sum(-1).nonzero().flatten().tolist()
    assert rows == [4]


# decoding


@every_output_layer
@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_incremental_decoding_is_the_full_forward(name, cell, build_tiny_lm, tokens):
    model = build_tiny_lm(name, rnn_cell=cell, dropout_output=0.5, dropout_weight=0.5).eval()
    full, incremental_state = model(tokens)[0], {}
    for t in range(T):
        step = model(tokens[:, : t + 1], incremental_state=incremental_state)[0]
        assert step.shape == (B, 1, V)
        torch.testing.assert_close(step[:, 0], full[:, t], rtol=1e-5, atol=1e-5)


@every_output_layer
@pytest.mark.parametrize("order", [[2, 0, 1], [0, 0, 0], [1, 1, 2, 0, 2]])
def test_rows_can_be_reordered_while_decoding(name, order, build_tiny_lm, tokens):
    model, incremental_state, order = build_tiny_lm(name).eval(), {}, torch.tensor(order)
    for t in range(3):
        model(tokens[:, : t + 1], incremental_state=incremental_state)
    model.decoder.reorder_incremental_state_scripting(incremental_state, order)
    reordered = tokens[order]
    full = model(reordered)[0]
    for t in range(3, T):
        step = model(reordered[:, : t + 1], incremental_state=incremental_state)[0]
        torch.testing.assert_close(step[:, 0], full[:, t], rtol=1e-5, atol=1e-5)


def test_reordering_before_the_first_step_is_harmless(build_tiny_lm, tokens):
    model, incremental_state = build_tiny_lm("tied").eval(), {}
    model.decoder.reorder_incremental_state_scripting(incremental_state, torch.tensor([1, 0, 2]))
    step = model(tokens[:, :1], incremental_state=incremental_state)[0]
    torch.testing.assert_close(step, model(tokens[:, :1])[0], rtol=1e-6, atol=1e-6)


def test_decoding_leaves_the_streams_alone(build_tiny_lm, tokens):
    model, undisturbed = build_tiny_lm("tied").eval(), build_tiny_lm("tied").eval()
    for lm in (model, undisturbed):
        lm(tokens, stream="text", position=0)
    model(tokens, incremental_state={})
    assert torch.equal(model(tokens, stream_start=False)[0], undisturbed(tokens, stream_start=False)[0])


# flags and checkpoints


@every_output_layer
def test_a_state_dict_goes_round(name, build_tiny_lm, tokens):
    model, other = build_tiny_lm(name, seed=1), build_tiny_lm(name, seed=2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(tokens)[0], model.eval()(tokens)[0])


def test_a_checkpoint_of_another_vocabulary_is_refused(build_tiny_lm):
    with pytest.raises(ValueError, match=r"23 vocabulary items.*dictionary.*gives 29"):
        build_tiny_lm("tied", vocab_size=29).load_state_dict(build_tiny_lm("tied").state_dict())


def test_flags_have_no_defaults_of_their_own():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as the host's model group
    RecurrentLanguageModel.add_args(parser)
    assert vars(parser.parse_args([])) == {}


RATES = ["dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output", "dropout_weight"]


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("flag", RATES)
def test_what_is_no_dropout_rate_is_refused_with_its_flag(flag, rate, build_tiny_lm):
    with pytest.raises(ValueError, match=f"--{flag.replace('_', '-')}"):
        build_tiny_lm("tied", **{flag: rate})


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("name", ["mos", "doc"])
def test_what_is_no_latent_dropout_rate_is_refused_with_its_flag(name, rate, build_tiny_lm):
    with pytest.raises(ValueError, match="--latent-dropout"):
        build_tiny_lm(name, latent_dropout=rate)


@pytest.mark.parametrize(
    "name, flags, told",
    [
        ("tied", {"embed_dim": 0}, "--embed-dim"),
        ("tied", {"embed_dim": -8}, "--embed-dim"),
        ("tied", {"hidden_sizes": ""}, "--hidden-sizes"),
        ("tied", {"hidden_sizes": "12 x"}, "--hidden-sizes"),
        ("tied", {"hidden_sizes": "0 8"}, "--hidden-sizes"),
        ("full", {"hidden_sizes": "12 0"}, "--hidden-sizes"),
        ("full", {"hidden_sizes": "-12 8"}, "--hidden-sizes"),
        ("tied", {"hidden_sizes": "12 9"}, "--hidden-sizes.*--embed-dim"),
        ("tied", {"rnn_cell": "gru7"}, "--rnn-cell gru7"),
        ("tied", {"minor_input": "previous"}, "--minor-input: not a flag of --rnn-cell lstm"),
        ("tied", {"rnn_cell": "mmlstm", "major_proportions": "0.9 0.5 0.5"}, "3 values for 2 layers"),
        ("soft", {}, "--output-layer soft"),
        ("mos", {"experts_per_layer": "0 4"}, "--experts-per-layer"),
        ("mos", {"experts_per_layer": "0 1 4"}, "--experts-per-layer.*doc"),
        ("doc", {"experts_per_layer": "0 0 0"}, "--experts-per-layer"),
        ("doc", {"experts_per_layer": "0 -1 2"}, "--experts-per-layer"),
        ("doc", {"experts_per_layer": "0 one 2"}, "--experts-per-layer"),
        ("doc", {"output_chunk": 0}, "--output-chunk"),
        ("tied", {"output_chunk": -5}, "--output-chunk"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_flag(name, flags, told, build_tiny_lm):
    with pytest.raises(ValueError, match=told):
        build_tiny_lm(name, **flags)
