"""Words that a gate raises, ranked by hand."""

import pytest
import torch
from builders import build_lm, build_tiny_gated_lm, build_tiny_lm, make_dictionary, tiny_base_flags

from fairseq_plugins.evaluation.analyses.gate_words import RaisedWord, raised_words, word_gate, word_indices

V = 23


@pytest.fixture
def gate():
    return word_gate(build_tiny_gated_lm(tiny_base_flags("tied"), tiny_base_flags("mos")), "one.pt")


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
    assert [(one.word, one.count) for one in found["w1"]] == [("w3", 5)] and isinstance(found["w1"][0], RaisedWord)
    with pytest.raises(ValueError, match="--min-count 6: no word of train occurs as often"):
        raised_words(gate, ["w1"], dictionary=make_dictionary(V), counts=counts, min_count=6, num_words=3)


def test_gates_of_both_kinds_of_models_are_found():
    joint = build_lm("lstm_lm_awd", V, embed_dim=8, hidden_sizes="8 8", output_gate="iog")
    assert word_gate(joint, "one.pt") is joint.decoder.output.gate
    gated = build_tiny_gated_lm(tiny_base_flags("tied"))
    assert word_gate(gated, "one.pt") is gated.decoder.gate


@pytest.mark.parametrize("kind", ["iog-hidden", "iog-lstm"])
def test_a_gate_that_reads_more_is_refused(kind):
    model = build_tiny_gated_lm(tiny_base_flags("tied"), output_gate=kind)
    with pytest.raises(
        ValueError, match=f"^one.pt has --output-gate {kind}, which depends on more than the input word"
    ):
        word_gate(model, "one.pt")


def test_a_model_without_a_gate_is_refused():
    with pytest.raises(ValueError, match="^one.pt has no gate: give a model with --output-gate iog"):
        word_gate(build_tiny_lm("tied"), "one.pt")


def test_unknown_words_are_refused_and_the_unknown_word_is_not():
    dictionary = make_dictionary(V)
    assert word_indices(["w0", "<unk>"], dictionary).tolist() == [4, dictionary.unk()]
    with pytest.raises(ValueError, match="^foo, bar: not in the dictionary of the data"):
        word_indices(["w0", "foo", "bar"], dictionary)
