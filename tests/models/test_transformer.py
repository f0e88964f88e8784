"""fairseq's Transformer with the output layers of this package; for its decoder see test_decoder_contract.py."""

import re
from argparse import ArgumentParser

import pytest
import torch
from builders import build_encdec, build_lm, build_tiny_transformer, tiny_transformer_lm_flags
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig

from fairseq_plugins.models.presets.translation import TRANSFORMER_ARCHITECTURES
from fairseq_plugins.models.transformer import LEFT_OUT, RATES, TransformerWithOutputLayer
from fairseq_plugins.options import flag_of

PAD = 1
SOURCES, V, B, S, T = 19, 23, 3, 5, 6


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


@pytest.mark.parametrize("arch", sorted(TRANSFORMER_ARCHITECTURES))
def test_presets_share_the_decoders_embedding_unless_the_softmax_is_full(arch):
    with torch.device("meta"):
        model = build_encdec(arch, SOURCES, V)
    shares = model.decoder.output.projection.weight is model.decoder.embed_tokens.weight
    assert shares == (model.decoder.output.name != "full") and model.decoder.output.name == arch.split("_")[1]


def test_flags_that_share_the_embedding_make_the_softmax_tied():
    model = build_tiny_transformer("transformer_full", share_decoder_input_output_embed=True)
    assert model.decoder.output.name == "tied"
    model = build_tiny_transformer("transformer_full", share_all_embeddings=True, source_size=V)
    assert model.decoder.output.name == "tied" and model.encoder.embed_tokens is model.decoder.embed_tokens
    with pytest.raises(ValueError, match="--output-layer full has a matrix of its own.*take --output-layer tied"):
        build_tiny_transformer("transformer_drill", output_layer="full", share_all_embeddings=True, source_size=V)


def test_flags_that_nothing_here_reads_are_not_offered():
    host, ours = ArgumentParser(), ArgumentParser()
    gen_parser_from_dataclass(host, TransformerConfig(), with_prefix="")
    TransformerWithOutputLayer.add_args(ours)
    of_host, offered = ({action.dest for action in parser._actions} for parser in (host, ours))
    assert of_host.issuperset(LEFT_OUT) and offered.isdisjoint(LEFT_OUT)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"1 3\nw0 1 2 3\n", b"1 8\nw0 a b\n"])
def test_embeddings_of_a_file_that_holds_none_are_refused(content, tmp_path):
    path = tmp_path / "embeddings"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"--decoder-embed-path {path}: give a text of words with 8 numbers"):
        build_tiny_transformer("transformer_full", decoder_embed_path=str(path))


SIDES = ("encoder", "decoder")
TOO_SMALL = [f"{side}_{size}" for side in SIDES for size in ("embed_dim", "ffn_embed_dim", "attention_heads")]


@pytest.mark.parametrize(
    "flags, named",
    [
        (dict(share_all_embeddings=True), "--share-all-embeddings needs one dictionary: prepare the corpus"),
        (dict(share_all_embeddings=True, decoder_embed_dim=16), "--share-all-embeddings needs equal widths"),
        (dict(share_all_embeddings=True, decoder_embed_path="x"), "--share-all-embeddings has one file of vectors"),
        *(({name: 0}, f"{flag_of(name)} 0") for name in ("decoder_layers", *TOO_SMALL)),
        *(({name: -1}, f"{flag_of(name)} -1") for name in ("max_source_positions", "max_target_positions")),
        *(({f"{side}_embed_dim": 9}, f"--{side}-embed-dim 9: .*--{side}-attention-heads 2") for side in SIDES),
        *(({f"{side}_embed_dim": 2, f"{side}_attention_heads": 1}, f"--{side}-embed-dim 2") for side in SIDES),
        *((dict(decoder_output_dim=width), f"--decoder-output-dim {re.escape(width)}") for width in ("0", ".")),
        *(({name: 1.0}, f"{flag_of(name)} 1.0") for name in RATES),
        (dict(output_layer="mos", decoder_layerdrop=0.2), "--decoder-layerdrop 0.2: --output-layer mos"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, named):
    with pytest.raises(ValueError, match=named):
        build_tiny_transformer("transformer_full", **flags)


def test_a_language_model_drops_no_layer_below_a_mixture():
    with pytest.raises(ValueError, match="--decoder-layerdrop 0.2: --output-layer doc"):
        build_lm(vocab_size=V, **tiny_transformer_lm_flags("doc", decoder_layerdrop=0.2))


def test_narrow_layers_may_learn_positions_and_one_softmax_may_drop_layers():
    for side in SIDES:
        narrow = {f"{side}_embed_dim": 2, f"{side}_attention_heads": 1, f"{side}_learned_pos": True}
        build_tiny_transformer("transformer_full", **narrow)
    build_tiny_transformer("transformer_full", decoder_layerdrop=0.2)
