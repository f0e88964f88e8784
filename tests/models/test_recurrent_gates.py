"""Gates in the recurrent models: their state is a part of the decoder's."""

import example_gates
import pytest
import torch
from builders import build_tiny_encdec, build_tiny_lm, never_shares

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

PAD, SOURCES, V, B, S, T = 1, 19, 23, 3, 5, 6

every_layer = pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
every_gate = pytest.mark.parametrize("gate", sorted(example_gates.EXAMPLES))


@pytest.fixture(autouse=True)
def gates():
    with example_gates.registered():
        yield


@pytest.fixture
def build():
    """``build(kind, layer, gate)``: a model and what its decoder needs beside the tokens of one source sentence."""

    def build(kind, name, gate):
        if kind == "language model":
            return build_tiny_lm(name, output_gate=gate).double().eval(), {}
        share = {"share_embeddings": "none" if never_shares(name) else "output"}
        model = build_tiny_encdec(name, output_gate=gate, **share).double().eval()
        source = torch.randint(4, SOURCES, (1, S)).expand(B, -1)
        return model, {"encoder_out": model.encoder(source, src_lengths=torch.full((B,), S))}

    return build


@every_gate
@every_layer
@pytest.mark.parametrize("kind", ["language model", "encoder-decoder"])
@torch.no_grad()
def test_a_gated_model_decodes_as_in_one_pass_whatever_rows_the_beam_takes(kind, name, gate, build):
    model, context = build(kind, name, gate)
    tokens, store = torch.randint(4, V, (B, T)), {}

    def decode(start, end):
        steps = range(start + 1, end + 1)
        return torch.cat([model.decoder(tokens[:, :t], **context, incremental_state=store)[0] for t in steps], dim=1)

    expected = model.decoder(tokens, **context)[0]
    torch.testing.assert_close(decode(0, 3), expected[:, :3])
    order = torch.tensor([2, 0, 0])
    model.decoder.reorder_incremental_state_scripting(store, order)
    tokens = torch.cat([tokens[order, :3], torch.randint(4, V, (B, T - 3))], dim=1)
    torch.testing.assert_close(decode(3, T), model.decoder(tokens, **context)[0][:, 3:])


@every_gate
def test_windows_of_a_stream_are_one_sequence(gate, build):
    model, _ = build("language model", "doc", gate)
    tokens = torch.randint(4, V, (B, T))
    expected, _ = model(tokens)
    parts = [model(tokens[:, a:b], stream="train", position=a)[0] for a, b in ((0, 2), (2, 3), (3, T))]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)


@every_gate
@pytest.mark.parametrize("kind", ["language model", "encoder-decoder"])
def test_a_gate_learns(kind, gate, build):
    model, context = build(kind, "doc", gate)
    loss, _ = model.decoder(torch.randint(4, V, (B, T)), **context, target=torch.randint(4, V, (B, T)))
    loss.backward()
    gate_parameters = dict(model.decoder.output.gate.named_parameters())
    assert [key for key, value in gate_parameters.items() if value.grad is None or not value.grad.any()] == []
