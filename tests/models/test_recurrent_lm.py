"""The recurrent language model as the host builds it.

For its decoder see test_decoder_contract.py, for its flags and initial values test_recurrent_model_contract.py.
"""

import plain_formulas
import pytest
import torch
from builders import CELLS_AND_LAYERS, build_lm, build_model, build_tiny_lm, make_dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

V, B, T = 23, 3, 6


@pytest.fixture
def tokens():
    return torch.randint(V, (B, T))


def layers_by_hand(model, tokens):
    layers = [model.decoder.embedding.weight[tokens]]
    for layer in model.decoder.stack.layers:
        state = layer.initial_state(layers[-1])
        layers.append(plain_formulas.recurrent(layer, layers[-1], state, layers[0])[0])
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
@pytest.mark.parametrize("cell", sorted(plain_formulas.CELLS))
def test_the_distribution_is_that_of_the_equations(name, flags, cell, tokens):
    model = build_tiny_lm(name, rnn_cell=cell, **flags).double()
    layers = layers_by_hand(model, tokens)
    log_probs, extra = model(tokens)
    torch.testing.assert_close(extra["states"].layers, layers, rtol=1e-11, atol=1e-13)
    expected = plain_formulas.output_probs(model.decoder.output, layers)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-11, atol=1e-13)


def test_each_dropout_acts_at_its_place():
    rates = dict(dropout_embedding=0.1, dropout_input=0.2, dropout_hidden=0.3, dropout_output=0.4, dropout_weight=0.5)
    decoder = build_tiny_lm("tied", **rates).decoder
    assert decoder.embedding.word_dropout == 0.1
    assert decoder.input_dropout.rate == 0.2
    assert [dropout.rate for dropout in decoder.stack.dropouts] == [0.3, 0.4]
    assert [layer.weight_dropout for layer in decoder.stack.layers] == [0.5, 0.5]


def test_input_dropout_is_locked_and_the_stack_reads_it(tokens):
    model = build_tiny_lm("doc", dropout_input=0.5)
    states = model(tokens)[1]["states"]
    mask = states.layers[0] / model.decoder.embedding.weight[tokens]
    assert (mask == 0).any() and torch.allclose(mask, mask[:, :1].expand_as(mask))
    torch.testing.assert_close(model.decoder.stack(states.layers[0]).top, states.top, rtol=1e-6, atol=1e-6)


def test_the_tied_output_matrix_is_not_masked(tokens):
    model = build_tiny_lm("tied", dropout_embedding=0.9).double()
    log_probs, extra = model(tokens)
    dropped = extra["states"].layers[0].eq(0).all(-1)
    assert dropped.any()
    expected = plain_formulas.output_probs(model.decoder.output, extra["states"].layers)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-11, atol=1e-13)


# streams


@pytest.mark.parametrize("cell, name", CELLS_AND_LAYERS)
def test_windows_of_a_stream_are_one_long_sequence(cell, name, tokens):
    model = build_tiny_lm(name, rnn_cell=cell).double()
    whole = model(tokens)[0]
    windows = [model(tokens[:, a:b], stream="text", position=a)[0] for a, b in ((0, 2), (2, 5), (5, T))]
    torch.testing.assert_close(torch.cat(windows, dim=1), whole, rtol=1e-11, atol=1e-11)


def test_a_new_stream_starts_from_zero(tokens):
    model = build_tiny_lm("tied")
    expected = model(tokens)[0]
    model(torch.randint(V, (B, T)), stream="text", position=0)
    assert not torch.equal(model(tokens, stream="text", position=T)[0], expected)
    assert torch.equal(model(tokens, stream="text", position=0)[0], expected)


def test_a_window_can_be_repeated(tokens):
    model = build_tiny_lm("tied")
    model(tokens, stream="text", position=0)
    outputs = [model(tokens, stream="text", position=T)[0] for _ in range(3)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
    with pytest.raises(ValueError, match="stream 'text' cannot go on at token 5"):
        model(tokens, stream="text", position=5)


def test_separate_sequences_start_from_zero_and_leave_the_streams_alone(tokens):
    model, other = build_tiny_lm("tied"), build_tiny_lm("tied")
    for lm in (model, other):
        lm(tokens, stream="text", position=0)
    fresh = build_tiny_lm("tied")(tokens)[0]
    assert torch.equal(model(tokens)[0], fresh)
    outputs = [lm(tokens, stream="text", position=T)[0] for lm in (model, other)]
    assert torch.equal(*outputs) and not torch.equal(outputs[0], fresh)


def test_an_evaluation_in_mid_stream_leaves_the_training_stream_untouched(tokens):
    model, undisturbed = build_tiny_lm("tied"), build_tiny_lm("tied")
    for lm in (model, undisturbed):
        lm.train()(tokens, stream="train", position=0)
    model.eval()
    first = model(tokens[:1], stream="valid", position=0)[0]
    assert torch.equal(first, build_tiny_lm("tied")(tokens[:1])[0])
    for position in (0, T):
        model(torch.randint(V, (5, T)), stream="valid", position=position)
    outputs = [lm.train()(tokens, stream="train", position=T)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs)


def test_the_mode_of_the_model_does_not_change_the_stream(tokens):
    """Statistics over the training text are taken beside the training, from a stream of their own."""
    model, expected = build_tiny_lm("tied"), build_tiny_lm("tied")
    for lm, mode in ((model, False), (expected, True)):
        lm.train()(tokens, stream="train", position=0)
        lm.train(mode)(tokens, stream="statistics", position=0)
        lm.train(mode)(tokens, stream="train", position=T)
    states = [lm.decoder.carried_state.get("train", 2 * T) for lm in (model, expected)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_no_gradient_crosses_windows_of_a_stream(tokens):
    model = build_tiny_lm("tied")
    model(tokens, stream="text", position=0)
    second = torch.full((B, 1), 4)
    states = model(second, stream="text", position=T)[1]["states"]
    states.top.sum().backward()
    rows = model.decoder.embedding.weight.grad.abs().sum(-1).nonzero().flatten().tolist()
    assert rows == [4]


def test_decoding_leaves_the_streams_alone(tokens):
    model, undisturbed = build_tiny_lm("tied").eval(), build_tiny_lm("tied").eval()
    for lm in (model, undisturbed):
        lm(tokens, stream="text", position=0)
    model(tokens, incremental_state={})
    outputs = [lm(tokens, stream="text", position=T)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("cell", sorted(plain_formulas.CELLS))
def test_dropped_rows_start_a_window_from_zero_and_the_others_go_on(cell):
    """In training alone; which ones is decided by the generator, which the host seeds at every update."""
    rows, flags = 40, dict(rnn_cell=cell, output_gate="iog-lstm", gate_dim=5, gate_dropout=0.0)
    first, second = torch.randint(V, (2, rows, T))
    plain, model = build_tiny_lm("tied", **flags), build_tiny_lm("tied", dropout_carried_state=0.3, **flags)
    for lm in (plain, model):
        lm.train()(first, stream="train", position=0)
    goes_on, starts = plain(second, stream="train", position=T)[0], build_tiny_lm("tied", **flags)(second)[0]
    windows = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        windows.append(model(second, stream="train", position=T)[0])
        dropped = (windows[-1] - starts).abs().amax(dim=(1, 2)) < 1e-5
        assert 3 <= dropped.sum() <= 22
        expected = torch.where(dropped.view(-1, 1, 1), starts, goes_on)
        torch.testing.assert_close(windows[-1], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(windows[0], windows[1]) and not torch.equal(windows[0], windows[2])
    torch.testing.assert_close(model.eval()(second, stream="train", position=T)[0], goes_on, rtol=0, atol=0)
    assert model(second)[0] is not None


def test_no_row_is_dropped_where_no_state_is_carried(tokens):
    model = build_tiny_lm("tied", dropout_carried_state=0.01).train()
    with pytest.raises(ValueError, match="^--dropout-carried-state 0.01: no state .* --task stateful_lm, or give 0$"):
        model(tokens)
    model.eval()(tokens)


# the sum of all layers


@pytest.mark.parametrize("name, flags", [("tied", {}), ("mos", {}), ("doc", {"experts_per_layer": "1 2 2"})])
@pytest.mark.parametrize("cell", ["lstm", "mogrifier"])
def test_the_output_layer_reads_the_sum_of_all_layers(name, flags, cell, tokens):
    sizes = dict(embed_dim=8, hidden_sizes="8 8")
    model = build_tiny_lm(name, rnn_cell=cell, output_skip="sum", **sizes, **flags).double()
    embedded, first, last = layers_by_hand(model, tokens)
    log_probs, extra = model(tokens)
    layers = [embedded, first, first + last]
    torch.testing.assert_close(extra["states"].layers, layers, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(extra["states"].top, layers[-1], rtol=1e-11, atol=1e-13)
    expected = plain_formulas.output_probs(model.decoder.output, layers)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("skips", [("sum", "none"), ("none", "sum")])
def test_a_checkpoint_with_another_output_is_refused(skips):
    trained, loaded = (build_tiny_lm("tied", hidden_sizes="8 8", output_skip=skip) for skip in skips)
    with pytest.raises(ValueError, match=f"trained with --output-skip {skips[0]}, this model has .* {skips[1]}"):
        loaded.load_state_dict(trained.state_dict())


# initial values


def test_without_a_range_every_part_starts_in_its_own_way():
    params = dict(build_lm("lstm_lm_awd", 200, embed_dim=32, hidden_sizes="40 32").named_parameters())
    assert 0.09 < params["decoder.embedding.weight"].abs().max() <= 0.1
    assert 0.95 / 40**0.5 < params["decoder.stack.layers.0.weight_hh_l0"].abs().max() <= 1 / 40**0.5
    assert params["decoder.stack.layers.0.bias_hh_l0"].any()


def test_a_start_of_biases_is_one_within_a_range():
    build_tiny_lm("tied", init_range=0.1, init_biases="uniform")
    with pytest.raises(ValueError, match="^--init-biases uniform is a start within --init-range: give that, too$"):
        build_tiny_lm("tied", init_biases="uniform")


@pytest.mark.parametrize("arch", ["lstm_lm_awd", "gated_lm"])
def test_a_task_of_pairs_is_refused(arch):
    task = TranslationTask(TranslationConfig(), make_dictionary(V), make_dictionary(V))
    with pytest.raises(ValueError, match="a language model, .* pairs: give --task stateful_lm .*--arch for pairs"):
        build_model(arch, task)
