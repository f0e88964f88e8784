"""Transformer language models: fairseq's own as the reference, context along a stream, batches, every output layer."""

from argparse import Namespace

import builders
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture

from fairseq_plugins.modules.cell import state_tensors
from fairseq_plugins.options import UserError, flag_of

LENGTH, VOCAB_SIZE = 6, 23
SIZES = dict(decoder_layers=2, decoder_embed_dim=8, decoder_ffn_embed_dim=16, decoder_attention_heads=2, dropout=0.0)


def build(layer="full", *, length=LENGTH, **flags):
    flags = {**SIZES, "max_target_positions": length, **flags}
    model = builders.build_lm(f"transformer_lm_{layer}", VOCAB_SIZE, **flags)
    return builders.randomise(model, 0.5, seed=0).double().eval()


def draw_tokens(*shape):
    return torch.randint(4, VOCAB_SIZE, shape)


def read(model, tokens, *, lengths, stream="text"):
    """Log-probabilities of a stream that is read in windows of the given lengths."""
    outputs, position = [], 0
    for length in lengths:
        outputs.append(model(tokens[:, position : position + length], stream=stream, position=position)[0])
        position += length
    assert position == tokens.size(1)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("shared", [False, True])
def test_without_context_it_is_fairseqs(shared):
    ours = build(share_decoder_input_output_embed=shared, output_bias="off")
    args = Namespace(**SIZES, max_target_positions=LENGTH, share_decoder_input_output_embed=shared)
    base_lm_architecture(args)
    theirs = TransformerLanguageModel.build_model(args, builders.make_task(VOCAB_SIZE)).double().eval()
    state = {name: value for name, value in ours.state_dict().items() if name in theirs.state_dict()}
    state["decoder.output_projection.weight"] = ours.decoder.output.projection.weight
    theirs.load_state_dict(state)
    tokens = draw_tokens(3, LENGTH)
    tokens[1, 4:] = 1  # padding
    expected = torch.log_softmax(theirs(tokens)[0], dim=-1)
    at_tokens = tokens != 1
    torch.testing.assert_close(ours(tokens)[0][at_tokens], expected[at_tokens], rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 5, 6])
def test_a_stream_is_read_in_strides_behind_at_least_half_the_length(length):
    model, tokens = build(length=length), draw_tokens(2, 23)
    scored = read(model, tokens, lengths=[23])
    stride = max(1, length // 2)
    for place in range(23):
        first = 0 if place < length else ((place - length) // stride + 1) * stride
        alone = model(tokens[:, first : place + 1])[0][:, -1]
        torch.testing.assert_close(scored[:, place], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", ["full", "doc"])
def test_windows_of_an_evaluation_do_not_matter(layer):
    model, tokens = build(layer), draw_tokens(2, 31)
    whole = read(model, tokens, lengths=[31], stream="whole")
    in_windows = read(model, tokens, lengths=[1, 4, 7, 9, 2, 8], stream="windows")
    torch.testing.assert_close(in_windows, whole, rtol=0, atol=1e-12)


def test_training_reads_windows_without_context():
    model, tokens = build().train(), draw_tokens(2, 12)
    carried = read(model, tokens, lengths=[6, 6])
    alone = torch.cat([model(tokens[:, :6])[0], model(tokens[:, 6:])[0]], dim=1)
    torch.testing.assert_close(carried, alone, rtol=0, atol=1e-12)
    assert model.decoder.carried_state.get("text", 12)["layers"][0].shape == (2, 0)


def test_rows_and_padding_of_a_batch_of_strides_do_not_matter():
    model, tokens = build("doc", length=3), draw_tokens(3, 10)
    lengths = [10, 7, 2]
    for row, end in enumerate(lengths):
        tokens[row, end:] = 1
    batch = model(tokens)[0]
    for row, end in enumerate(lengths):
        alone = model(tokens[row : row + 1, :end])[0]
        torch.testing.assert_close(batch[row, :end], alone[0], rtol=0, atol=1e-12)


def test_steps_of_a_search_are_the_strides_of_a_text_and_follow_their_hypotheses():
    model, tokens = build("mos", output_gate="iog-lstm"), draw_tokens(2, 9)
    store, swapped = {}, torch.tensor([1, 0, 0])
    for end in range(1, 10):
        if end == 9:
            model.decoder.reorder_incremental_state(store, swapped)
            tokens = tokens[swapped]
        step = model(tokens[:, :end], incremental_state=store)[0]
        # in steps fairseq's attention has its softmax in float32: the greatest difference was 2e-9
        torch.testing.assert_close(step[:, -1], model(tokens[:, :end])[0][:, -1], rtol=0, atol=1e-7)
        kept = state_tensors(model.decoder.cached(store)["layers"][1])
        assert {x.size(2) for x in kept} == ({end} if end < 6 else set() if end in (6, 9) else {end - 3})


@pytest.mark.parametrize(
    "flag, value",
    [("decoder_attention_heads", 3), ("decoder_layers", 0), ("max_target_positions", 0), ("dropout", 2.0)],
)
def test_impossible_values_name_the_flag(flag, value):
    with pytest.raises(UserError, match=flag_of(flag)):
        build(**{flag: value})


def test_the_length_is_that_of_the_samples_unless_positions_are_given():
    args = Namespace(arch="transformer_lm_full", **SIZES, tokens_per_sample=70)
    ARCH_CONFIG_REGISTRY[args.arch](args)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, builders.make_task(VOCAB_SIZE))
    assert model.decoder.length == 70 and len(model.decoder.layers) == 2
