"""Scores of windows, streams, sequences and pairs, and the independence of generators."""

import math

import plain_formulas
import pytest
import torch
from builders import (
    FAIRSEQ_ARCHITECTURES,
    build_encdec,
    build_fairseqs_own,
    build_tiny_encdec,
    build_tiny_gated_lm,
    build_tiny_lm,
    build_tiny_transformer,
)
from example_parts import OwnSoftmax

from fairseq_plugins.evaluation.scoring import (
    evaluate_perplexity,
    prepare_to_score,
    score_pairs,
    score_sequences,
    score_windows,
)
from fairseq_plugins.models.sliding_context import stream_model
from fairseq_plugins.output_layers import base
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

V = 23


@pytest.mark.parametrize("num_rows, window, words", [(1, 7, "all"), (4, 5, "targets")])
@torch.no_grad()
def test_windows_hold_what_one_pass_gives(num_rows, window, words, tokens):
    model = build_tiny_lm("doc", experts_per_layer="1 0 2", dropout_output=0.5).double().train()
    windows = list(score_windows([model], tokens, num_rows=num_rows, window=window, words=words))
    rows = tokens[: len(tokens) // num_rows * num_rows].view(num_rows, -1)
    inputs, target = rows[:, :-1], rows[:, 1:]
    log_probs, extra = model.eval()(inputs)
    scores = [one.scores[0] for one in windows]
    expected = [
        (inputs, [one.inputs for one in windows]),
        (target, [one.target for one in windows]),
        (-log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1), [one.nll for one in windows]),
        *((layer, [one.states[0].layers[n] for one in windows]) for n, layer in enumerate(extra["states"].layers)),
        (extra["scores"].mixture_weights, [one.mixture_weights for one in scores]),
    ]
    if words == "all":
        expected.append((log_probs, [one.log_probs for one in scores]))
    for whole, parts in expected:
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-11, atol=1e-11)
    if words == "targets":  # the NLL of targets alone, which takes less memory
        assert all(one.log_probs is None for one in scores)
        assert [one.loss.item() for one in scores] == pytest.approx([one.nll.sum().item() for one in windows])


def test_generators_that_run_by_turns_and_a_training_between_do_not_disturb_each_other(tokens):
    model, others = build_tiny_lm("tied", dropout_output=0.5), tokens.flip(0)
    expected = [[one.nll for one in score_windows([model], text, window=7)] for text in (tokens, others)]
    undisturbed = build_tiny_lm("tied", dropout_output=0.5).train()
    first, second = tokens[:60].view(6, 10).split(5, dim=1)
    model.train()(first, stream="train", position=0)
    undisturbed(first, stream="train", position=0)
    found = [[], []]
    for windows in zip(score_windows([model], tokens, window=7), score_windows([model], others, window=7)):
        model.train()
        for one, nlls in zip(windows, found):
            nlls.append(one.nll)
    for nlls, expected_nlls in zip(found, expected):
        torch.testing.assert_close(nlls, expected_nlls, rtol=0, atol=0)
    outputs = [lm.eval()(second, stream="train", position=5)[1]["states"].layers[1] for lm in (model, undisturbed)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


@pytest.mark.parametrize("num_read", [1, 3, 1000])
def test_the_state_is_forgotten_at_the_end_and_where_the_reader_stops(num_read, tokens):
    model = build_tiny_lm("tied")
    windows = score_windows([model], tokens, window=7)
    for _ in zip(range(num_read), windows):
        pass
    windows.close()
    assert not model.decoder.carried_state._streams


def test_gradients_are_off_unless_asked_for_and_the_readers_setting_stays(tokens):
    model = build_tiny_lm("tied")
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            for asked in (True, False):
                for window in score_windows([model], tokens, window=20, with_gradients=asked):
                    assert torch.is_grad_enabled() == mode
                    assert window.scores[0].loss.requires_grad == window.states[0].top.requires_grad == asked
                    assert not window.nll.requires_grad


PADDING, END, UNKNOWN = 1, 2, 3
LENGTHS = [5, 1, 9, 3, 9, 2, 14, 1]


@pytest.fixture
def sequences():
    return [torch.cat([torch.randint(4, V, (length - 1,)), torch.tensor([END])]) for length in LENGTHS]


@torch.no_grad()
def nll_alone(model, sequence):
    """Of each word, by a model that reads nothing else."""
    inputs = torch.cat([torch.tensor([END]), sequence[:-1]])
    log_probs = torch.log_softmax(model.eval()(inputs[None])[0][0], dim=-1)
    return -log_probs.gather(-1, sequence[:, None])[:, 0]


def assert_scores(found, expected, tolerance=1e-11):
    assert len(found) == len(expected)
    for scored, nll in zip(found, expected):
        torch.testing.assert_close(scored, nll, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "name, max_tokens", [*((name, 10) for name in sorted(OUTPUT_LAYERS)), ("doc", 1), ("mos", 4096)]
)
def test_scores_are_those_of_each_sequence_alone_whatever_the_batches(name, max_tokens, sequences):
    model = build_tiny_lm(name, dropout_output=0.5, dropout_weight=0.5, dropout_embedding=0.5).double()
    found = score_sequences([model], sequences, max_tokens=max_tokens)
    assert_scores(found, [nll_alone(model, sequence) for sequence in sequences])


def test_sequences_start_fresh_and_streams_go_on_afterwards(sequences):
    model, undisturbed = (build_tiny_lm("tied").double() for _ in range(2))
    first, second = torch.randint(V, (2, len(sequences), 6))
    for lm in (model, undisturbed):
        lm(first, stream="text", position=0)
    assert_scores(score_sequences([model], sequences), [nll_alone(model, sequence) for sequence in sequences])
    outputs = [lm(second, stream="text", position=6)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs)


def test_models_are_averaged_as_probabilities(sequences):
    models = [build_tiny_lm("tied", seed=1).double(), build_tiny_lm("mos", seed=2).double()]
    mean = [sum(torch.exp(-nll_alone(model, sequence)) for model in models) / 2 for sequence in sequences]
    assert_scores(score_sequences(models, sequences), [-probs.log() for probs in mean])


@pytest.mark.parametrize("window", [5, 4096])
@pytest.mark.parametrize("arch", FAIRSEQ_ARCHITECTURES)
def test_fairseqs_language_models_are_scored_too(arch, window, sequences):
    own, ours = build_fairseqs_own(arch).double().eval(), build_tiny_lm("tied").double()
    for models in ([own], [own, ours]):
        mean = [sum(torch.exp(-nll_alone(model, one)) for model in models) / len(models) for one in sequences]
        found = score_sequences([stream_model(model) for model in models], sequences, max_tokens=20, window=window)
        assert_scores(found, [-probs.log() for probs in mean], tolerance=1e-6)  # fairseq normalises in float32


@pytest.mark.parametrize("max_tokens, num_batches", [(1, 8), (28, 3), (14 * 8, 1)])
def test_batches_hold_so_many_tokens_and_the_longest_come_first(max_tokens, num_batches, sequences):
    model, shapes = build_tiny_lm("tied"), []
    model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    score_sequences([model], sequences, max_tokens=max_tokens)
    assert len(shapes) == num_batches and sum(rows for rows, _ in shapes) == len(sequences)
    assert all(rows == 1 or rows * longest <= max_tokens for rows, longest in shapes)
    assert shapes[0][1] == 14 and shapes == sorted(shapes, key=lambda shape: -shape[1])


def test_the_symbol_of_padding_is_a_word_like_others_in_a_text():
    model, sequences = build_tiny_lm("tied").double(), [torch.tensor([5, PADDING, 6, END]), torch.tensor([END])]
    assert_scores(score_sequences([model], sequences), [nll_alone(model, sequence) for sequence in sequences])


@pytest.mark.parametrize("window", [4, 14])
def test_a_long_sequence_is_read_in_windows(window, sequences):
    models, longest = [build_tiny_lm("tied", seed=1).double(), build_tiny_lm("doc", seed=2).double()], []
    models[0].register_forward_pre_hook(lambda _, inputs: longest.append(inputs[0].size(1)))
    expected = score_sequences(models, sequences)
    assert max(longest) == 14
    longest.clear()
    assert_scores(score_sequences(models, sequences, window=window), expected)
    assert max(longest) == window and not models[0].decoder.carried_state._streams


def test_gated_models_are_scored_without_their_distribution(sequences):
    model, asked = build_tiny_gated_lm("tied", "mos").double(), []
    model.register_forward_hook(lambda *call: asked.append(call[2][1]["scores"].log_probs))
    expected = [nll_alone(model, sequence) for sequence in sequences]
    asked.clear()
    assert_scores(score_sequences([model], sequences), expected)
    assert asked and all(log_probs is None for log_probs in asked)


def test_models_of_different_vocabularies_are_refused(sequences):
    models = [build_tiny_lm("tied"), build_tiny_lm("tied", vocab_size=V + 1)]
    with pytest.raises(ValueError, match="different vocabularies"):
        score_sequences(models, sequences)


def test_nothing_has_no_scores():
    assert score_sequences([build_tiny_lm("tied")], []) == []


PAIR_LENGTHS = [(3, 5), (6, 1), (1, 9), (4, 4), (6, 2)]


def fairseq_transformer():
    """A small model of fairseq, which reads 14 tokens at most."""
    sizes = dict(layers=1, embed_dim=8, ffn_embed_dim=8, attention_heads=2)
    flags = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    return build_encdec("transformer", 19, 23, max_source_positions=14, max_target_positions=14, **flags)


MODELS = {
    "recurrent": lambda: build_tiny_encdec("doc", dropout=0.5),
    "transformer": lambda: build_tiny_transformer("transformer_mos", dropout=0.5),
    "fairseq": fairseq_transformer,
}


@pytest.fixture
def pairs():
    sizes = (19, 23)
    return [
        [torch.cat([torch.randint(4, size, (pair[side] - 1,)), torch.tensor([END])]) for pair in PAIR_LENGTHS]
        for side, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "name, max_tokens", [*((name, 9) for name in MODELS), ("recurrent", 1), ("transformer", 12), ("fairseq", 4096)]
)
@torch.no_grad()
def test_scores_are_those_of_each_pair_alone_whatever_the_batches(name, max_tokens, pairs):
    model, seen = MODELS[name]().double(), []
    for batch in score_pairs(model, *pairs, max_tokens=max_tokens):
        for number, nll, is_token in zip(batch.numbers, batch.nll, batch.is_token):
            source, target = (side[number] for side in pairs)
            output = model.eval()(source[None], torch.tensor([len(source)]), target.roll(1)[None])
            log_probs = model.get_normalized_probs(output, log_probs=True)[0]
            torch.testing.assert_close(nll[is_token], -log_probs.gather(-1, target[:, None])[:, 0].double())
            assert not nll[~is_token].any() and int(is_token.sum()) == PAIR_LENGTHS[number][1]
        assert (batch.scores is None) == (name == "fairseq")
        seen += batch.numbers
        longest = max(max(PAIR_LENGTHS[number]) for number in batch.numbers)
        assert longest * len(batch.numbers) <= max_tokens or len(batch.numbers) == 1
    assert sorted(seen) == list(range(len(PAIR_LENGTHS)))


def test_a_pair_that_a_model_cannot_read_is_refused(pairs):
    targets = [*pairs[1][:-1], torch.full((15,), 5)]
    with pytest.raises(ValueError, match="the target of pair 5 has 15 tokens .* at most 14: leave the pair out"):
        list(score_pairs(fairseq_transformer(), pairs[0], targets))


@torch.no_grad()
def target_probs_by_hand(model, row):
    """P of each token but the first of a row."""
    layers = [model.decoder.embedding.weight[row[None, :-1]]]
    for layer in model.decoder.stack.layers:
        output, _ = plain_formulas.recurrent(layer, layers[-1], layer.initial_state(layers[-1]), layers[0])
        layers.append(output)
    return plain_formulas.output_probs(model.decoder.output, layers)[0].gather(-1, row[1:, None])[:, 0]


@pytest.mark.parametrize(
    "name, flags, num_rows, window",
    [
        ("tied", {}, 1, 1),
        ("tied", {}, 7, 5),
        ("tied", {}, 30, 7),
        ("mos", {"experts_per_layer": "0 0 3"}, 1, 7),
        ("doc", {"experts_per_layer": "1 2 2"}, 1, 1000),
    ],
)
def test_perplexity_is_that_of_the_equations(name, flags, num_rows, window, tokens):
    model = build_tiny_lm(name, dropout_output=0.5, dropout_weight=0.5, dropout_embedding=0.5, **flags).double()
    result = evaluate_perplexity([model], tokens, num_rows=num_rows, window=window)
    rows = tokens[: len(tokens) // num_rows * num_rows].view(num_rows, -1)
    expected = -torch.cat([target_probs_by_hand(model, row) for row in rows]).log().mean().item()
    assert result.nll == pytest.approx(expected, rel=1e-11)
    assert result.perplexity == pytest.approx(math.exp(expected), rel=1e-10)
    assert result.num_tokens == num_rows * (len(tokens) // num_rows - 1)
    assert result.num_leftover_tokens == len(tokens) % num_rows


def test_unknown_words_are_counted_among_the_targets_only():
    tokens = torch.tensor([UNKNOWN, 5, UNKNOWN, UNKNOWN, 6, UNKNOWN, 7])
    result = evaluate_perplexity([build_tiny_lm("tied")], tokens, window=2)
    assert result.num_unknown == 3


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_model_that_diverged_or_is_damaged_is_refused(value, tokens):
    model = build_tiny_lm("tied")
    model.decoder.output.projection.bias.data[7] = float(value)
    with pytest.raises(ValueError, match=r"\A.*loss of the model is (nan|inf): .* damaged; take another[^\n]*\Z"):
        evaluate_perplexity([model], tokens, window=7)
    with pytest.raises(ValueError, match="loss of model 2 of 2 is"):
        evaluate_perplexity([build_tiny_lm("tied"), model], tokens)
    with pytest.raises(ValueError, match="loss of model 2 of 2 is"):
        score_sequences([build_tiny_lm("tied"), model], [torch.full((3,), 7)])


def test_a_large_loss_is_no_mistake(tokens):
    model = build_tiny_lm("tied")
    model.decoder.output.projection.bias.data[7] = 1e4
    result = evaluate_perplexity([model], tokens)
    assert 5000 < result.nll < 1e4 and result.perplexity == math.inf
    assert result.bits_per_token == pytest.approx(result.nll / math.log(2))


@pytest.fixture
def only_meta_has_products(monkeypatch):
    """Products in bfloat16 are native on the device "meta", and not on the CPU, where models are loaded."""
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: device.type == "meta")


def test_the_device_that_computes_must_have_the_precision(only_meta_has_products):
    model = build_tiny_lm("doc")
    with pytest.raises(ValueError, match="--output-precision bfloat16: this cpu has no matrix products in bfloat16"):
        prepare_to_score([model], device="cpu", precision="bfloat16")
    assert model.decoder.output.precision.scores_in is None
    prepare_to_score([model], device="meta", precision="bfloat16")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert model.decoder.output.precision.scores_in == "bfloat16"


def test_what_no_layer_takes_is_refused(monkeypatch):
    monkeypatch.setitem(OUTPUT_LAYERS, "own", OwnSoftmax)
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    models = [build_tiny_lm("doc"), build_tiny_lm("own")]
    with pytest.raises(ValueError, match="--output-precision float8: choose one of"):
        prepare_to_score(models[1:], device="cpu", precision="float8")
    with pytest.raises(ValueError, match="--output-precision bfloat16: a model's output layer computes only in"):
        prepare_to_score(models, device="cpu", precision="bfloat16")
    assert prepare_to_score(models, device="cpu", precision="float32") == models
