"""Perplexity against a token-by-token loop written out."""

import math

import plain_formulas
import pytest
import torch
from tensor_sizes import TensorSizes

from fairseq_plugins.evaluation.perplexity import Perplexity, evaluate_perplexity
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

V = 23
UNKNOWN = 3
LAYERS = [("tied", {}), ("mos", {"experts_per_layer": "0 0 3"}), ("doc", {"experts_per_layer": "1 2 2"})]


@pytest.fixture
def tokens():
    return torch.randint(V, (241,))


@torch.no_grad()
def target_probs_by_hand(model, tokens):
    """P of each token but the first of one row, one step at a time."""
    decoder = model.decoder
    state = [(torch.zeros(1, layer.hidden_size).double(),) * 2 for layer in decoder.stack.layers]
    probs = []
    for token, target in zip(tokens[:-1], tokens[1:]):
        layers = [decoder.embedding.weight[token].view(1, 1, -1)]
        for n, layer in enumerate(decoder.stack.layers):
            output, h, c = plain_formulas.lstm(layers[-1], *state[n], *layer.parameters())
            state[n] = (h, c)
            layers.append(output)
        probs.append(plain_formulas.output_probs(decoder.output, layers)[0, 0, target])
    return torch.stack(probs)


def mean_nll(probs):
    return -probs.log().mean().item()


@pytest.mark.parametrize("name, flags", LAYERS)
@pytest.mark.parametrize("window", [1, 7, 70, 1000])
def test_it_is_that_of_a_loop_token_by_token(name, flags, window, build_tiny_lm, tokens):
    model = build_tiny_lm(name, dropout_output=0.5, dropout_weight=0.5, dropout_embedding=0.5, **flags).double()
    result = evaluate_perplexity([model], tokens, unknown=UNKNOWN, window=window)
    expected = mean_nll(target_probs_by_hand(model, tokens))
    assert result.nll == pytest.approx(expected, rel=1e-11)
    assert result.perplexity == pytest.approx(math.exp(expected), rel=1e-10)
    assert result.num_tokens == len(tokens) - 1


@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
def test_the_window_is_no_part_of_the_result(name, build_tiny_lm):
    model, tokens = build_tiny_lm(name), torch.randint(V, (1500,))
    values = [evaluate_perplexity([model], tokens, unknown=UNKNOWN, window=w).perplexity for w in (7, 70, 1000)]
    assert values == pytest.approx([values[-1]] * 3, rel=1e-5)


@pytest.mark.parametrize("name", ["tied", "mos"])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(name, build_tiny_lm, tokens):
    model = build_tiny_lm(name).double()
    torch.nn.init.zeros_(model.decoder.output.projection.weight)
    torch.nn.init.zeros_(model.decoder.output.projection.bias)
    result = evaluate_perplexity([model], tokens, unknown=UNKNOWN)
    assert result.perplexity == pytest.approx(V, rel=1e-12)
    assert result.bits_per_token == pytest.approx(math.log2(V), rel=1e-12)


def test_models_are_averaged_as_probabilities(build_tiny_lm, tokens):
    models = [build_tiny_lm("tied", seed=1).double(), build_tiny_lm("doc", seed=2).double()]
    mean = sum(target_probs_by_hand(model, tokens) for model in models) / 2
    result = evaluate_perplexity(models, tokens, unknown=UNKNOWN, window=70)
    assert result.nll == pytest.approx(mean_nll(mean), rel=1e-11)


def test_a_model_with_itself_is_that_model(build_tiny_lm, tokens):
    other, model = build_tiny_lm("tied").double(), build_tiny_lm("tied").double()
    one = evaluate_perplexity([model], tokens, unknown=UNKNOWN)
    two = evaluate_perplexity([model, other], tokens, unknown=UNKNOWN)
    assert two.nll == pytest.approx(one.nll, rel=1e-13)


@pytest.mark.parametrize("num_rows", [1, 2, 10, 120])
def test_rows_start_from_zero_and_leave_a_rest(num_rows, build_tiny_lm, tokens):
    model = build_tiny_lm("tied").double()
    length = len(tokens) // num_rows
    rows = tokens[: num_rows * length].view(num_rows, length)
    expected = mean_nll(torch.cat([target_probs_by_hand(model, row) for row in rows]))
    result = evaluate_perplexity([model], tokens, unknown=UNKNOWN, num_rows=num_rows, window=7)
    assert result.nll == pytest.approx(expected, rel=1e-11)
    assert result.num_tokens == num_rows * (length - 1)
    assert result.num_leftover_tokens == len(tokens) % num_rows


def test_unknown_words_are_counted_among_the_targets_only(build_tiny_lm):
    tokens = torch.tensor([UNKNOWN, 5, UNKNOWN, UNKNOWN, 6, UNKNOWN, 7])
    result = evaluate_perplexity([build_tiny_lm("tied")], tokens, unknown=UNKNOWN, window=2)
    assert result.num_unknown == 3


def test_an_evaluation_starts_from_zero_each_time(build_tiny_lm, tokens):
    model = build_tiny_lm("tied")
    assert evaluate_perplexity([model], tokens, unknown=0) == evaluate_perplexity([model], tokens, unknown=0)


def test_training_streams_go_on_after_an_evaluation(build_tiny_lm, tokens):
    model, undisturbed = build_tiny_lm("tied"), build_tiny_lm("tied")
    first, second = torch.randint(V, (2, 3, 5))
    for lm in (model, undisturbed):
        lm.train()(first, stream="text", position=0)
    evaluate_perplexity([model], tokens, unknown=UNKNOWN)
    outputs = [lm.train()(second, stream="text", position=5)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs)


def test_no_gradients_are_kept(build_tiny_lm, tokens):
    model = build_tiny_lm("doc")
    evaluate_perplexity([model], tokens, unknown=UNKNOWN)
    assert all(param.grad is None for param in model.parameters())


@pytest.mark.parametrize("name", ["tied", "doc"])
def test_log_probabilities_of_a_window_are_never_held(name, build_tiny_lm):
    vocab_size, window = 2003, 150
    tokens, largest = torch.randint(vocab_size, (window + 1,)), []
    for flags in ({"output_chunk": 8}, {"output_loss": "plain"}):
        model = build_tiny_lm(name, vocab_size=vocab_size, **flags)
        with TensorSizes() as sizes:
            evaluate_perplexity([model], tokens, unknown=UNKNOWN, window=window)
        largest.append(sizes.largest)
    assert largest[0] < window * vocab_size <= largest[1]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_model_that_diverged_or_is_damaged_is_refused(value, build_tiny_lm, tokens):
    model = build_tiny_lm("tied")
    model.decoder.output.projection.bias.data[7] = float(value)
    with pytest.raises(
        ValueError, match="loss of the model is (nan|inf): .* diverged .* damaged; take another"
    ) as error:
        evaluate_perplexity([model], tokens, unknown=UNKNOWN, window=7)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="loss of model 2 of 2 is"):
        evaluate_perplexity([build_tiny_lm("tied"), model], tokens, unknown=UNKNOWN)


def test_a_large_loss_is_no_mistake(build_tiny_lm, tokens):
    model = build_tiny_lm("tied")
    model.decoder.output.projection.bias.data[7] = 1e4
    result = evaluate_perplexity([model], tokens, unknown=UNKNOWN)
    assert 5000 < result.nll < 1e4 and result.perplexity == math.inf


def test_a_perplexity_beyond_floats_is_infinite():
    result = Perplexity(num_tokens=1, nll=800.0, num_unknown=0, num_leftover_tokens=0)
    assert result.perplexity == math.inf
    assert result.bits_per_token == pytest.approx(800 / math.log(2))


@pytest.mark.parametrize("flags", [dict(num_rows=0), dict(num_rows=-1), dict(window=0), dict(window=-7)])
def test_rows_and_windows_below_one_are_refused(flags, build_tiny_lm, tokens):
    with pytest.raises(ValueError, match="at least 1"):
        evaluate_perplexity([build_tiny_lm("tied")], tokens, unknown=UNKNOWN, **flags)


def test_a_stream_that_is_too_short_is_refused(build_tiny_lm, tokens):
    with pytest.raises(ValueError, match="too few"):
        evaluate_perplexity([build_tiny_lm("tied")], tokens, unknown=UNKNOWN, num_rows=200)
