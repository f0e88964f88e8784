"""The recurrent encoder-decoder as fairseq builds it.

For its decoder see test_decoder_contract.py, for its flags and initial values test_recurrent_models.py.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import plain_formulas
import pytest
import torch
from builders import CELLS_AND_LAYERS, build_model, build_tiny_encdec, make_task
from decoder_contract import LENGTHS, PAD, SOURCES, B, T, V, pad

from fairseq_plugins.modules.attention import Attention
from fairseq_plugins.modules.cell import state_tensors


@pytest.fixture
def sentences():
    return [torch.randint(4, SOURCES, (length,)) for length in LENGTHS]


@pytest.fixture
def tokens():
    return torch.randint(4, V, (B, T))


@pytest.fixture
def source(sentences):
    return pad(sentences, side="left")


def build(name, **flags):
    """A model whose DOC layer reads every layer."""
    experts = {"experts_per_layer": "1 1 2 2"} if name == "doc" else {}
    return build_tiny_encdec(name, **{"attention": "general", **experts, **flags})


# the equations


def layers_by_hand(model, sentence, tokens, input_feeding, merge):
    """Embedding, recurrent layers and h~ of one sentence, each (1, T, D_n)."""
    embedded = model.encoder.embedding.weight[sentence][None]
    annotations, start = plain_formulas.encoder(model.encoder.stack, embedded, merge)
    memory, embedded = SimpleNamespace(annotations=annotations, padding=None), model.decoder.embedding.weight[tokens]
    stack, feeds = model.decoder.stack, input_feeding == "on"
    return [embedded[None], *plain_formulas.attentional_stack(stack, embedded[None], memory, start, feeds=feeds)[0]]


@pytest.mark.parametrize(
    "cell, name, input_feeding, merge",
    [
        *((*case, "on", "top") for case in CELLS_AND_LAYERS),
        ("lstm", "doc", "off", "top"),
        ("lstm", "doc", "on", "layer"),
    ],
)
def test_the_distribution_is_that_of_the_equations(cell, name, input_feeding, merge, sentences, source, tokens):
    sizes = {"hidden_sizes": "8 8"} if merge == "layer" else {}
    model = build(name, input_feeding=input_feeding, rnn_cell=cell, encoder_merge=merge, **sizes).double()
    log_probs, extra = model(*source, tokens)
    for b, sentence in enumerate(sentences):
        layers = layers_by_hand(model, sentence, tokens[b], input_feeding, merge)
        expected = plain_formulas.output_probs(model.decoder.output, layers)
        torch.testing.assert_close(log_probs[b].exp(), expected[0], rtol=1e-11, atol=1e-13)
        found = [layer[b : b + 1] for layer in extra["states"].layers]
        torch.testing.assert_close(found, layers, rtol=1e-11, atol=1e-13)


# embeddings and initial values


@pytest.mark.parametrize(
    "name, share, of_output, of_source",
    [("full", "none", False, False), ("tied", "output", True, False), ("mos", "all", True, True)],
)
def test_embeddings_are_shared_as_the_flag_says(name, share, of_output, of_source):
    model = build(name, source_size=V if share == "all" else SOURCES, share_embeddings=share)
    source, target, output = model.encoder.embedding, model.decoder.embedding, model.decoder.output.projection
    assert len(source.weight) == (V if share == "all" else SOURCES) and len(target.weight) == len(output.weight) == V
    assert (output.weight is target.weight, source.weight is target.weight) == (of_output, of_source)


# flags


@pytest.mark.parametrize(
    "name, flags, told",
    [
        ("mos", {"share_embeddings": "all"}, "--share-embeddings all .*--joined-dictionary"),
        ("tied", {"share_embeddings": "none"}, "--output-layer tied .*--output-layer full"),
        ("full", {"share_embeddings": "output"}, "--output-layer full .*leave out --share-embeddings output"),
        ("full", {"encoder_merge": "bottom"}, "--encoder-merge bottom"),
        ("full", {"encoder_directions": "left"}, "--encoder-directions left"),
        ("full", {"encoder_directions": "forward", "encoder_merge": "layer"}, "--encoder-merge layer has no effect on"),
        ("dual", {"label_init": "glorot"}, "--label-init has no effect here: --init-range draws all parameters"),
        ("full", {"output_gate": "iog", "gate_init_range": 0.1}, "--gate-init-range has no effect here"),
        ("full", {"attention": "none"}, "--input-feeding on .*--attention"),
        ("doc", {"attention": "none", "input_feeding": "off"}, "--experts-per-layer.* 4 numbers: give at most 3"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_flag(name, flags, told):
    with pytest.raises(ValueError, match=told):
        build(name, **flags)


@pytest.mark.parametrize(
    "arch, flags, is_read",
    [
        ("lstm_encdec", {}, True),
        ("transformer_doc", {"output_gate": "iog-lstm"}, True),
        ("transformer_doc", {}, False),
    ],
)
def test_targets_that_are_padded_in_front_are_refused_where_padding_would_be_read(arch, flags, is_read):
    task = make_task(30)
    task.cfg = SimpleNamespace(left_pad_target=True)
    told = "^--left-pad-target: .* would read the padding before a sentence"
    with pytest.raises(ValueError, match=told) if is_read else nullcontext():
        build_model(arch, task, **flags)


@pytest.fixture
def read(monkeypatch):
    """Every query that attention reads, with the memory."""
    pairs, context = [], Attention.context
    monkeypatch.setattr(Attention, "context", lambda layer, *pair: pairs.append(pair) or context(layer, *pair))
    return pairs


def test_dropout_is_on_every_layer_but_not_on_embeddings_and_annotations(source, read):
    model, tokens = build_tiny_encdec("full", attention="mlp", dropout=0.5), torch.randint(4, V, (B, T))
    states = model(*source, tokens)[1]["states"]
    assert torch.equal(states.layers[0], model.decoder.embedding.weight[tokens])
    assert all(0.3 < layer.eq(0).float().mean() < 0.7 for layer in states.layers[1:])
    assert len(read) == T
    for query, memory in read:
        assert (query != 0).all() and (memory.annotations[~source[0].eq(PAD)] != 0).all()
    assert (states.top != 0).all()
    handed_over = list(state_tensors(model.encoder(source[0])["final_state"]))
    assert len(handed_over) == 4 and all(part.ne(0).all() for part in handed_over)
