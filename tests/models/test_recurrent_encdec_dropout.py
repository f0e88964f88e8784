"""Where a recurrent encoder-decoder drops values, and where it does not."""

import pytest
import torch
from builders import build_tiny_encdec
from decoder_contract import LENGTHS, PAD, SOURCES, B, T, V, pad

from fairseq_plugins.modules.attention import Attention
from fairseq_plugins.modules.recurrent_state import state_tensors


@pytest.fixture
def source():
    return pad([torch.randint(4, SOURCES, (length,)) for length in LENGTHS], side="left")


@pytest.fixture
def read(monkeypatch):
    """Every query that the steps of attention read, with the memory."""
    pairs, begin = [], Attention.steps

    def steps(attention, memory, **options):
        attend = begin(attention, memory, **options)
        return lambda t, query: pairs.append((query, memory)) or attend(t, query)

    monkeypatch.setattr(Attention, "steps", steps)
    return pairs


def test_dropout_is_on_every_layer_but_not_on_embeddings_and_annotations(source, read):
    model, tokens = build_tiny_encdec("full", dropout=0.5), torch.randint(4, V, (B, T))
    states = model(*source, tokens)[1]["states"]
    assert torch.equal(states.layers[0], model.decoder.embedding.weight[tokens])
    assert all(0.3 < layer.eq(0).float().mean() < 0.7 for layer in states.layers[1:])
    assert len(read) == T
    for query, memory in read:
        assert (query != 0).all() and (memory.annotations[~source[0].eq(PAD)] != 0).all()
    assert (states.top != 0).all()
    handed_over = list(state_tensors(model.encoder(source[0])["start"]))
    assert len(handed_over) == 4 and all(part.ne(0).all() for part in handed_over)


def test_what_the_output_layer_alone_reads_may_be_kept(source):
    model = build_tiny_encdec("full", hidden_sizes="8 8", dropout=0.5, dropout_output=0.0)
    encoded = model.encoder(source[0])["encoder_out"][0]
    _, below, last, attended = model(*source, torch.randint(4, V, (B, T)))[1]["states"].layers
    assert below.eq(0).any() and last.ne(0).all() and attended.ne(0).all()
    assert not torch.equal(encoded, model.encoder(source[0])["encoder_out"][0])


@pytest.mark.parametrize("merge", ["top", "layer"])
def test_the_encoder_drops_between_layers_only(merge, source):
    two, one = (
        build_tiny_encdec("full", hidden_sizes=sizes, dropout=0.5, encoder_merge=merge).encoder
        for sizes in ("8 8", "8")
    )
    assert not torch.equal(two(source[0])["encoder_out"][0], two(source[0])["encoder_out"][0])
    assert torch.equal(one(source[0])["encoder_out"][0], one(source[0])["encoder_out"][0])
