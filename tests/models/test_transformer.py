"""fairseq's Transformer with the output layers of this package; for its decoder see test_decoder_contract.py."""

import re
from argparse import ArgumentParser

import example_gates
import pytest
import torch
from builders import build_encdec, build_tiny_transformer, never_shares
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig

from fairseq_plugins.models.presets.translation import TRANSFORMER_ARCHITECTURES
from fairseq_plugins.models.transformer import LEFT_OUT, RATES, TransformerWithOutputLayer
from fairseq_plugins.options import flag_of

PAD = 1
SOURCES, V, B, S, T = 19, 23, 3, 5, 6


def with_layer(name, **flags):
    shared = {} if never_shares(name) else dict(share_decoder_input_output_embed=True)
    experts = dict(experts_per_layer="1 1 2") if name == "doc" else {}
    return build_tiny_transformer("transformer_full", output_layer=name, **shared, **experts, **flags)


@pytest.fixture(autouse=True)
def gates():
    with example_gates.registered():
        yield


@pytest.fixture
def batch():
    source = torch.randint(4, SOURCES, (B, S))
    source[0, :2] = PAD
    return source, torch.tensor([S - 2, S, S]), torch.randint(4, V, (B, T))


@pytest.mark.parametrize("shares", [True, False])
def test_one_softmax_is_fairseqs_transformer(shares, batch):
    ours = build_tiny_transformer("transformer_full", share_decoder_input_output_embed=shares).eval()
    host = build_tiny_transformer("transformer", share_decoder_input_output_embed=shares).eval()
    weights = {key: value for key, value in ours.named_parameters() if not key.startswith("decoder.output.")}
    weights["decoder.output_projection.weight"] = ours.decoder.output.projection.weight
    host.load_state_dict({**host.state_dict(), **weights})
    with torch.no_grad():
        ours.decoder.output.projection.bias.zero_()
        expected = host.get_normalized_probs(host(*batch), log_probs=True)
        torch.testing.assert_close(ours(*batch)[0], expected, rtol=1e-5, atol=1e-5)


def test_layers_are_the_embedding_then_the_decoders(batch):
    model = with_layer("doc").eval()
    _, extra = model(*batch)
    states = extra["states"]
    assert len(states.layers) == len(model.decoder.layers) + 1 and states.layers[-1] is states.top
    assert all(layer.shape == (B, T, 8) for layer in states.layers)
    assert extra["scores"].mixture_weights.shape == (B, T, 4)
    features, _ = model.decoder.extract_features(batch[2], encoder_out=model.encoder(*batch[:2]))
    torch.testing.assert_close(states.top, features)


def test_drill_adds_two_layers_to_the_base():
    with torch.device("meta"):
        tied = build_encdec("transformer_full_wmt14", 50, 60, share_decoder_input_output_embed=True)
        drill = build_encdec("transformer_drill_wmt14", 50, 60)
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (tied, drill)]
    assert count[1] - count[0] == 2 * (512**2 + 512)
    assert len(drill.decoder.layers) == 6 and drill.decoder.layers[0].fc1.out_features == 2048


@pytest.mark.parametrize("arch", sorted(TRANSFORMER_ARCHITECTURES))
def test_presets_share_the_decoders_embedding_unless_the_softmax_is_full(arch):
    with torch.device("meta"):
        model = build_encdec(arch, SOURCES, V)
    shares = model.decoder.output.projection.weight is model.decoder.embed_tokens.weight
    assert shares == (model.decoder.output.name != "full") and model.decoder.output.name == arch.split("_")[1]


def test_flags_that_share_the_embedding_make_the_softmax_tied():
    assert (
        build_tiny_transformer("transformer_full", share_decoder_input_output_embed=True).decoder.output.name == "tied"
    )
    model = build_tiny_transformer("transformer_full", share_all_embeddings=True, source_size=V)
    assert model.decoder.output.name == "tied" and model.encoder.embed_tokens is model.decoder.embed_tokens
    with pytest.raises(ValueError, match="--output-layer full has a matrix of its own.*take --output-layer tied"):
        build_tiny_transformer("transformer_drill", output_layer="full", share_all_embeddings=True, source_size=V)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_flags_that_nothing_here_reads_are_not_offered(name):
    host, ours = ArgumentParser(), ArgumentParser()
    gen_parser_from_dataclass(host, TransformerConfig(), with_prefix="")
    TransformerWithOutputLayer.add_args(ours)
    offered = [{action.dest for action in parser._actions} for parser in (host, ours)]
    assert name in offered[0] and name not in offered[1]


def test_flags_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="--share-all-embeddings requires a joined dictionary"):
        build_tiny_transformer("transformer_full", share_all_embeddings=True)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"1 3\nw0 1 2 3\n", b"1 8\nw0 a b\n"])
def test_embeddings_of_a_file_that_holds_none_are_refused(content, tmp_path):
    path = tmp_path / "embeddings"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"--decoder-embed-path {path}: give a text of words with 8 numbers"):
        build_tiny_transformer("transformer_full", decoder_embed_path=str(path))


@pytest.mark.parametrize("size", ["embed_dim", "ffn_embed_dim", "attention_heads"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_sizes_below_one_are_refused(side, size):
    with pytest.raises(ValueError, match=f"--{side}-{size.replace('_', '-')} 0: give at least 1"):
        build_tiny_transformer("transformer_full", **{f"{side}_{size}": 0})


@pytest.mark.parametrize("width, told", [("0", "give at least 1"), (".", "give a whole number")])
def test_an_output_width_that_is_none_is_refused(width, told):
    with pytest.raises(ValueError, match=rf"^--decoder-output-dim {re.escape(width)}: {told}"):
        build_tiny_transformer("transformer_full", decoder_output_dim=width)


@pytest.mark.parametrize("name", ["max_source_positions", "max_target_positions"])
def test_texts_without_positions_are_refused(name):
    with pytest.raises(ValueError, match=f"{flag_of(name)} -1: give at least 1"):
        build_tiny_transformer("transformer_full", **{name: -1})


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_widths_that_do_not_fit_are_refused(side):
    with pytest.raises(ValueError, match=f"--{side}-embed-dim 9: give a multiple of --{side}-attention-heads 2"):
        build_tiny_transformer("transformer_full", **{f"{side}_embed_dim": 9, f"{side}_attention_heads": 2})
    narrow = {f"{side}_embed_dim": 2, f"{side}_attention_heads": 1}
    with pytest.raises(ValueError, match=f"--{side}-embed-dim 2: give at least 4 for sines and cosines"):
        build_tiny_transformer("transformer_full", **narrow)
    build_tiny_transformer("transformer_full", **narrow, **{f"{side}_learned_pos": True})


@pytest.mark.parametrize("name", ["mos", "doc"])
def test_layers_that_mixtures_read_are_not_dropped(name):
    with pytest.raises(ValueError, match="--decoder-layerdrop 0.2: --output-layer"):
        with_layer(name, decoder_layerdrop=0.2)
    with_layer("tied", decoder_layerdrop=0.2)


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("rate", [-1.0, 1.0, 1.5])
def test_rates_that_are_no_probability_are_refused(name, rate):
    with pytest.raises(
        ValueError, match=f"^--{name.replace('_', '-')} {rate}: a dropout rate is the probability to dr"
    ):
        with_layer("tied", **{name: rate})


# gates


every_gate = pytest.mark.parametrize("gate", sorted(example_gates.EXAMPLES))


@every_gate
@pytest.mark.parametrize("name", ["tied", "full", "doc"])
@torch.no_grad()
def test_a_gated_model_decodes_as_in_one_pass_whatever_rows_the_beam_takes(name, gate, batch):
    model = with_layer(name, output_gate=gate).eval()
    source, lengths, tokens = batch
    encoder_out, store = model.encoder(source[:1].expand(B, -1), lengths[:1].expand(B)), {}  # a beam of one sentence

    def decode(start, end):
        steps = range(start + 1, end + 1)
        return torch.cat([model.decoder(tokens[:, :t], encoder_out, store)[0] for t in steps], dim=1)

    expected = model.decoder(tokens, encoder_out)[0]
    torch.testing.assert_close(decode(0, 3), expected[:, :3], rtol=1e-5, atol=1e-5)
    order = torch.tensor([2, 0, 0])
    model.decoder.reorder_incremental_state_scripting(store, order)
    tokens = torch.cat([tokens[order, :3], torch.randint(4, V, (B, T - 3))], dim=1)
    expected = model.decoder(tokens, encoder_out)[0]
    torch.testing.assert_close(decode(3, T), expected[:, 3:], rtol=1e-5, atol=1e-5)


@every_gate
def test_a_gated_model_trains(gate, batch):
    model, target = with_layer("drill", output_gate=gate).train(), torch.randint(4, V, (B, T))
    loss, _ = model(*batch, target=target)
    log_probs, _ = model(*batch)
    torch.testing.assert_close(loss, -log_probs.gather(-1, target.unsqueeze(-1)).sum(), rtol=1e-5, atol=1e-5)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()] == []
