"""Comparison of language models by word frequency, against loops written out."""

import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm, make_dictionary
from plain_formulas import softmax

from fairseq_plugins.evaluation.analyses.words import (
    compare_bands,
    losses_by_type,
    raised_words,
    word_gate,
    word_indices,
)
from fairseq_plugins.evaluation.scoring import evaluate_perplexity

V = 23


def test_losses_by_type_add_up_to_the_loss_and_are_those_of_each_word():
    model, tokens = build_tiny_lm("tied").double(), torch.randint(V, (301,))
    losses = losses_by_type([model], tokens, vocab_size=V, window=17)
    assert losses.sum().item() == pytest.approx(evaluate_perplexity([model], tokens).nll * 300, rel=1e-12)
    log_probs, _ = model.eval()(tokens[None, :-1])
    nll = -softmax(log_probs[0]).log()
    expected = [sum(nll[i, word].item() for i in range(300) if tokens[i + 1] == word) for word in range(V)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-10)


def test_bands_by_hand():
    train_counts = torch.tensor([900, 0, 1, 49, 50, 60, 5000])
    counts = torch.tensor([10, 1, 2, 1, 3, 0, 4])
    baseline = torch.tensor([1.0, 1.0, 6.0, 3.0, 9.0, 0.0, 2.0])
    other = torch.tensor([9.0, 9.0, 4.0, 4.0, 10.0, 0.0, 2.0])
    low, middle, high = compare_bands(baseline, other, train_counts=train_counts, counts=counts, excluded=[0])
    assert (low.lowest, low.below, low.num_types, low.num_tokens) == (1, 50, 2, 3)
    assert low.mean_of_types == pytest.approx(100 * (2 / 4 - 1 / 4) / 2)
    assert low.of_the_loss == pytest.approx(100 * (9 - 8) / 9)
    assert (middle.lowest, middle.num_types, middle.mean_of_types) == (50, 1, pytest.approx(-10))
    assert (high.lowest, high.below, high.num_tokens, high.of_the_loss) == (5000, None, 4, 0)


@pytest.fixture
def gate():
    return word_gate(build_tiny_gated_lm("tied", "mos"))


def test_the_frequent_words_with_the_largest_gates_are_found(gate):
    dictionary, counts = make_dictionary(V), torch.randint(0, 200, (V,))
    counts[10] = 100
    found = raised_words(gate, ["w3", "</s>"], dictionary=dictionary, counts=counts, min_count=100, num_words=4)
    assert list(found) == ["w3", "</s>"]
    for word, raised in found.items():
        features = gate.embedding.weight[dictionary.index(word)]
        g = 1 / (1 + (-gate.linear.weight @ features - gate.linear.bias).exp())
        ranked = sorted((v for v in range(V) if counts[v] >= 100), key=lambda v: -g[v].item())
        assert [one.word for one in raised] == [dictionary[v] for v in ranked[:4]]
        assert [one.gate for one in raised] == pytest.approx([g[v].item() for v in ranked[:4]])
        assert [one.count for one in raised] == [counts[v] for v in ranked[:4]]


def test_there_are_no_more_words_than_frequent_ones(gate):
    counts = torch.zeros(V, dtype=torch.long)
    counts[7] = 5
    found = raised_words(gate, ["w1"], dictionary=make_dictionary(V), counts=counts, min_count=5, num_words=3)
    assert [(one.word, one.count) for one in found["w1"]] == [("w3", 5)]
    with pytest.raises(ValueError, match="--min-count 6: no word of train occurs so often"):
        raised_words(gate, ["w1"], dictionary=make_dictionary(V), counts=counts, min_count=6, num_words=3)


def test_gates_that_read_the_word_alone_are_found_and_others_refused():
    joint, gated = build_tiny_lm("tied", output_gate="iog", gate_dim=5), build_tiny_gated_lm("tied")
    assert word_gate(joint) is joint.decoder.output.gate and word_gate(gated) is gated.decoder.gate
    for kind in ("iog-hidden", "iog-lstm"):
        with pytest.raises(ValueError, match=f"^the model's --output-gate {kind} depends on more than the input word"):
            word_gate(build_tiny_gated_lm("tied", output_gate=kind))
    with pytest.raises(ValueError, match="^the model has no gate: give a model with --output-gate iog"):
        word_gate(build_tiny_lm("tied"))


def test_unknown_words_are_refused_and_the_unknown_word_is_not():
    dictionary = make_dictionary(V)
    assert word_indices(["w0", "<unk>"], dictionary).tolist() == [4, dictionary.unk()]
    with pytest.raises(ValueError, match="^foo, bar: not in the dictionary of the data"):
        word_indices(["w0", "foo", "bar"], dictionary)
