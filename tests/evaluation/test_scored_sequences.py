"""Scores of separate sequences against one sequence at a time."""

from types import SimpleNamespace

import plain_formulas
import pytest
import torch
from builders import build_tiny_gated_lm, tiny_base_flags
from host_models import build_host_lm
from tensor_sizes import TensorSizes

from fairseq_plugins.evaluation.scored_sequences import longest_sequence, score_sequences
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

V, END, PADDING = 23, 2, 1
LENGTHS = [5, 1, 9, 3, 9, 2, 14, 1]


@pytest.fixture
def sequences():
    return [torch.cat([torch.randint(4, V, (length - 1,)), torch.tensor([END])]) for length in LENGTHS]


@torch.no_grad()
def log_probs_alone(model, sequence):
    """Of all words at each position, (n, V), by a model that reads nothing else."""
    inputs = torch.cat([torch.tensor([END]), sequence[:-1]])
    return torch.log_softmax(model.eval()(inputs[None])[0][0], dim=-1)


def nll_alone(model, sequence):
    return -log_probs_alone(model, sequence).gather(-1, sequence[:, None])[:, 0]


def assert_scores(found, expected, tolerance=1e-11):
    assert len(found) == len(expected)
    for scored, nll in zip(found, expected):
        torch.testing.assert_close(scored.token_nll, nll, rtol=tolerance, atol=tolerance)
        assert scored.nll == pytest.approx(nll.sum().item(), rel=tolerance)


@pytest.mark.parametrize("max_tokens", [1, 10, 29, 4096])
@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
def test_they_are_those_of_each_sequence_alone_whatever_the_batches(name, max_tokens, build_tiny_lm, sequences):
    model = build_tiny_lm(name, dropout_output=0.5, dropout_weight=0.5, dropout_embedding=0.5).double()
    found = score_sequences([model], sequences, max_tokens=max_tokens)
    assert_scores(found, [nll_alone(model, sequence) for sequence in sequences])


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_every_cell_starts_fresh(cell, build_tiny_lm, sequences):
    model = build_tiny_lm("tied", rnn_cell=cell).double()
    model(torch.randint(V, (len(sequences), 6)), stream="text", position=0)
    assert_scores(score_sequences([model], sequences), [nll_alone(model, sequence) for sequence in sequences])


def test_the_first_token_is_predicted_from_an_end_mark_and_the_end_mark_too(build_tiny_lm):
    model = build_tiny_lm("tied").double().eval()
    decoder, zeros = model.decoder, torch.zeros(1, 1).double()
    (scored,) = score_sequences([model], [torch.tensor([7, 11, 5, END])])
    x = decoder.embedding.weight[[END, 7, 11, 5]][None]
    for layer in decoder.stack.layers:
        x, _, _ = plain_formulas.lstm(x, *[zeros.expand(1, layer.hidden_size)] * 2, *layer.parameters())
    probs = plain_formulas.output_probs(decoder.output, [x])[0]
    expected = [-probs[i, word].log().item() for i, word in enumerate([7, 11, 5, END])]
    assert scored.token_nll.tolist() == pytest.approx(expected, rel=1e-11)


def test_a_permutation_of_the_sequences_permutes_the_scores(build_tiny_lm, sequences):
    model, order = build_tiny_lm("doc", experts_per_layer="1 0 2").double(), torch.randperm(len(sequences)).tolist()
    found = score_sequences([model], sequences, max_tokens=20)
    permuted = score_sequences([model], [sequences[i] for i in order], max_tokens=20)
    assert_scores(permuted, [found[i].token_nll for i in order])


def test_models_are_averaged_as_probabilities(build_tiny_lm, sequences):
    models = [build_tiny_lm("tied", seed=1).double(), build_tiny_lm("mos", seed=2).double()]
    mean = [sum(torch.exp(-nll_alone(model, sequence)) for model in models) / 2 for sequence in sequences]
    assert_scores(score_sequences(models, sequences), [-probs.log() for probs in mean])


@pytest.mark.parametrize("arch", ["transformer_lm", "lstm_lm"])
def test_the_hosts_language_models_are_scored_too(arch, build_tiny_lm, sequences):
    host, ours = build_host_lm(arch).double(), build_tiny_lm("tied").double()
    for models in ([host], [host, ours]):
        mean = [sum(torch.exp(-nll_alone(model, one)) for model in models) / len(models) for one in sequences]
        found = score_sequences(models, sequences, max_tokens=20)
        assert_scores(found, [-probs.log() for probs in mean], tolerance=1e-6)  # the host normalises in float32


def test_a_sequence_that_a_model_cannot_read_is_refused(build_tiny_lm):
    models = [build_tiny_lm("tied"), build_host_lm("transformer_lm")]
    with pytest.raises(ValueError, match="sequence 2 has 15 tokens and the model reads at most 14: cut it"):
        score_sequences(models, [torch.full((length,), 5) for length in (14, 15)])


def test_the_model_that_reads_least_is_the_limit_of_several():
    models = [SimpleNamespace(decoder=None, max_positions=lambda length=length: length) for length in (9, 5, 7)]
    assert longest_sequence(models) == 5


@pytest.mark.parametrize("max_tokens, num_batches", [(1, 8), (28, 3), (14 * 8, 1)])
def test_batches_hold_so_many_tokens_and_the_longest_come_first(max_tokens, num_batches, build_tiny_lm, sequences):
    model, shapes = build_tiny_lm("tied"), []
    model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    score_sequences([model], sequences, max_tokens=max_tokens)
    assert len(shapes) == num_batches and sum(rows for rows, _ in shapes) == len(sequences)
    assert all(rows == 1 or rows * longest <= max_tokens for rows, longest in shapes)
    assert shapes[0][1] == 14 and shapes == sorted(shapes, key=lambda shape: -shape[1])


def test_the_symbol_of_padding_is_a_word_like_others_in_a_text(build_tiny_lm):
    model, sequences = build_tiny_lm("tied").double(), [torch.tensor([5, PADDING, 6, END]), torch.tensor([END])]
    assert_scores(score_sequences([model], sequences), [nll_alone(model, sequence) for sequence in sequences])


@pytest.mark.parametrize("window", [1, 4, 14])
def test_a_long_sequence_is_read_in_windows(window, build_tiny_lm, sequences):
    models, longest = [build_tiny_lm("tied", seed=1).double(), build_tiny_lm("doc", seed=2).double()], []
    models[0].register_forward_pre_hook(lambda _, inputs: longest.append(inputs[0].size(1)))
    expected = [one.token_nll for one in score_sequences(models, sequences)]
    assert max(longest) == 14
    longest.clear()
    assert_scores(score_sequences(models, sequences, window=window), expected)
    assert max(longest) == window and not models[0].decoder.carried_state._streams


def test_gated_models_are_scored_without_their_distribution(sequences):
    bases = [tiny_base_flags("tied"), tiny_base_flags("mos")]
    model, asked = build_tiny_gated_lm(*bases).double(), []
    model.register_forward_hook(lambda *call: asked.append(call[2][1]["scores"].log_probs))
    expected = [nll_alone(model, sequence) for sequence in sequences]
    asked.clear()
    assert_scores(score_sequences([model], sequences), expected)
    assert asked and all(log_probs is None for log_probs in asked)


def test_streams_go_on_after_a_scoring(build_tiny_lm, sequences):
    model, undisturbed = build_tiny_lm("tied"), build_tiny_lm("tied")
    first, second = torch.randint(V, (2, 3, 5))
    for lm in (model, undisturbed):
        lm(first, stream="text", position=0)
    score_sequences([model], sequences)
    outputs = [lm.eval()(second, stream="text", position=5)[0] for lm in (model, undisturbed)]
    assert torch.equal(*outputs)


def test_log_probabilities_of_a_batch_are_never_held(build_tiny_lm):
    vocab_size, sequences, largest = 2003, [torch.randint(4, 2003, (50,)) for _ in range(3)], []
    for flags in ({"output_chunk": 8}, {"output_loss": "plain"}):
        with TensorSizes() as sizes:
            score_sequences([build_tiny_lm("tied", vocab_size=vocab_size, **flags)], sequences)
        largest.append(sizes.largest)
    assert largest[0] < 150 * vocab_size <= largest[1]


def test_models_of_different_vocabularies_are_refused(build_tiny_lm, sequences):
    models = [build_tiny_lm("tied"), build_tiny_lm("tied", vocab_size=V + 1)]
    with pytest.raises(ValueError, match="different vocabularies"):
        score_sequences(models, sequences)


def test_a_model_that_diverged_is_refused(build_tiny_lm, sequences):
    models = [build_tiny_lm("tied"), build_tiny_lm("tied")]
    models[1].decoder.stack.layers[0].weight_hh_l0.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="loss of model 2 of 2 is nan"):
        score_sequences(models, sequences)


def test_nothing_has_no_scores_and_batches_of_nothing_are_refused(build_tiny_lm, sequences):
    assert score_sequences([build_tiny_lm("tied")], []) == []
    with pytest.raises(ValueError, match="batches of 0 tokens: give at least 1"):
        score_sequences([build_tiny_lm("tied")], sequences, max_tokens=0)
