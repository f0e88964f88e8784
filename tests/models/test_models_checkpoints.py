"""Checkpoints, and the dictionaries and flags that they were trained with."""

import re
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from builders import build_model, build_tiny_encdec, build_tiny_transformer, dictionary_of, tiny_base_flags
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.ema.ema import EMA
from paths import SMALL_MODELS

import fairseq_plugins
from fairseq_plugins.fairseq_patches.checkpoints import OF_TRAINING, other_flags
from fairseq_plugins.models.checkpoints import read_state
from fairseq_plugins.parts import flag_names

WORDS = ["a", "b", "c", "d", "e"]
EXCHANGED = ["a", "c", "b", "d", "e"]
MORE = [*WORDS, "f"]
NOT_THE_ONE = "is not the one that the checkpoint was trained with: point to the data of the training"
SIZES = dict(embed_dim=8, hidden_sizes="8 8", dropout=0.0)
TRANSFORMER = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in dict(embed_dim=8, ffn_embed_dim=8, layers=1, attention_heads=1).items()
}
FLAGS = {
    "lstm_encdec": SIZES,
    "transformer_drill": TRANSFORMER,
    "lstm_lm_awd": dict(embed_dim=8, hidden_sizes="8 8"),
    "gated_lm": dict(base_model_flags=[tiny_base_flags("tied")]),
}


def build(arch, source, target=None, **flags):
    """A model for the words of its dictionaries."""
    source = dictionary_of(source)
    target = source if target is None else dictionary_of(target)
    task = SimpleNamespace(
        source_dictionary=source, target_dictionary=target, cfg=SimpleNamespace(source_lang="de", target_lang="en")
    )
    return build_model(arch, task, **flags)


@pytest.mark.parametrize(
    "arch, words, named, file",
    [
        *(
            (arch, words, f"the {side} dictionary", file)
            for arch in ("lstm_encdec", "transformer_drill")
            for others in (EXCHANGED, MORE)
            for words, side, file in (
                ([others, WORDS], "source", "--srcdict and its dict.de.txt"),
                ([WORDS, others], "target", "--tgtdict and its dict.en.txt"),
            )
        ),
        *(
            (arch, [words], "the vocabulary", "--srcdict and its dict.txt")
            for arch in ("lstm_lm_awd", "gated_lm")
            for words in (EXCHANGED, MORE)
        ),
    ],
)
def test_a_model_of_other_words_is_refused(arch, words, named, file):
    saved, same = (build(arch, *[WORDS] * len(words), **FLAGS[arch]) for _ in range(2))
    same.load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match=f"{named}, {file.split()[-1]}, {NOT_THE_ONE}.*{file}"):
        build(arch, *words, **FLAGS[arch]).load_state_dict(saved.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fingerprints_survive_any_precision(dtype):
    saved = build("lstm_encdec", WORDS, **SIZES).to(dtype).state_dict()
    build("lstm_encdec", WORDS, **SIZES).load_state_dict(dict(saved))
    build("lstm_encdec", WORDS, **SIZES).to(dtype).load_state_dict(dict(saved))


@pytest.mark.parametrize(
    "dtype, decay, fp32",
    [
        (torch.float16, 0.999, False),
        (torch.bfloat16, 0.9, False),
        (torch.float16, 0.9999, True),
    ],
)
def test_fingerprints_survive_the_moving_average_of_fairseq(dtype, decay, fp32):
    model = build("lstm_encdec", WORDS, **SIZES).to(dtype)
    config = SimpleNamespace(
        ema_decay=decay, ema_start_update=0, ema_seed_model=None, ema_update_freq=1, ema_fp32=fp32, store_ema=True
    )
    average = EMA(model, config)
    for update in range(100):
        average.step(model, update)
    build("lstm_encdec", WORDS, **SIZES).load_state_dict(dict(average.get_model().state_dict()))


V = 15  # of both languages, which share a dictionary


def encdec(share):
    return build_tiny_encdec("doc", source_size=V, vocab_size=V, share_embeddings=share)


def transformer(share):
    flags = {"none": {}, "output": {"share_decoder_input_output_embed": True}, "all": {"share_all_embeddings": True}}
    off = {"share_decoder_input_output_embed": False, "share_all_embeddings": False}
    return build_tiny_transformer("transformer_doc", source_size=V, vocab_size=V, **{**off, **flags[share]})


@pytest.mark.parametrize("build", [encdec, transformer])
@pytest.mark.parametrize("saved, shared", [("none", "output"), ("none", "all"), ("output", "all")])
def test_a_checkpoint_with_more_matrices_is_refused(saved, shared, build):
    state = build(saved).state_dict()
    with pytest.raises(ValueError, match="are one matrix in this model and two in the checkpoint: share embeddings"):
        build(shared).load_state_dict(dict(state))


@pytest.mark.parametrize("build", [encdec, transformer])
def test_a_checkpoint_with_fewer_starts_them_alike(build):
    state = {name: x.clone() for name, x in build("all").state_dict().items()}
    model = build("none")
    model.load_state_dict(state)
    output = model.decoder.output.projection.weight
    target = model.decoder.get_submodule("embed_tokens" if build is transformer else "embedding").weight
    assert output is not target and torch.equal(output, target)
    build("all").load_state_dict(state)


@pytest.mark.parametrize(
    "arch, trained, given, told",
    [
        ("lstm_lm_drill", {}, dict(label_activation="relu"), "label-activation sigmoid, this model has relu"),
        ("lstm_lm_drill", dict(label_residual="on"), dict(label_residual="off"), "--label-residual on, .* has off"),
        ("lstm_lm_drill", dict(label_layer_residual="on"), {}, "label-layer-residual on, this model has off"),
        ("lstm_lm_doc", dict(latent_activation="tanh"), dict(latent_activation="linear"), "activation tanh, .* linear"),
        ("lstm_lm_doc", {}, dict(experts_per_layer="0 2 2"), "without --experts-per-layer, this model has 0 2 2"),
        ("lstm_lm_doc", dict(experts_per_layer="2 0 2"), dict(experts_per_layer="0 2 2"), "layer 2 0 2, .* has 0 2 2"),
        ("lstm_lm_awd", {}, dict(output_layer="drill"), "with --output-layer tied, this model has drill"),
        ("lstm_lm_awd", {}, dict(output_gate="iog"), "with --output-gate none, this model has iog"),
        ("lstm_lm_awd", {}, dict(output_skip="sum"), "with --output-skip none, this model has sum"),
        ("lstm_lm_awd", dict(rnn_cell="rectifier"), dict(rnn_cell="smooth-rectifier"), "--rnn-cell rectifier, this"),
        ("rhn_lm", {}, dict(transform_input="candidate"), "with --transform-input state, this model has candidate"),
        ("rhn_lm", {}, dict(transform_bias=0.5), "with --transform-bias -2.0, this model has 0.5"),
        ("fpnn_lm", {}, dict(longest_timescale=10.0), "with --longest-timescale .*, this model has 10.0"),
        ("rectifier_rnn_lm", {}, dict(recurrent_scale=0.5), "--recurrent-scale 0.01, this model has 0.5"),
        ("mmlstm_lm", {}, dict(minor_input="previous"), "with --minor-input embedding, this model has previous"),
        ("lstm_encdec", {}, dict(encoder_merge="layer"), "with --encoder-merge top, this model has layer"),
    ],
)
def test_flags_that_change_the_function_but_no_shape_are_compared(arch, trained, given, told):
    saved, config = Namespace(arch=arch, **trained), Namespace(arch=arch, **given)
    for flags in (saved, config):
        ARCH_CONFIG_REGISTRY[arch](flags)
    assert not other_flags(saved, saved)
    (found,) = other_flags(config, saved)
    assert re.search(told, found), found


def test_a_default_may_be_given_or_left_out():
    given = Namespace(arch="lstm_lm_doc", latent_activation="tanh", output_gate="none", output_skip="none")
    left_out = Namespace(arch="lstm_lm_doc")
    for flags in (given, left_out):
        ARCH_CONFIG_REGISTRY[flags.arch](flags)
    assert not other_flags(given, left_out) and not other_flags(left_out, given)


def test_one_value_may_be_written_in_several_ways():
    saved = dict(
        encoder_layers="[(8, 3)] * 2", decoder_layers="[(8,3)]", encoder_embed_dim="8", decoder_attention="True"
    )
    given = dict(encoder_layers="[(8,3),(8,3)]", decoder_layers="[(8, 3)]", encoder_embed_dim=8, decoder_attention=True)
    assert not other_flags(Namespace(arch="fconv", **given), Namespace(arch="fconv", **saved))
    given["decoder_layers"] = "[(8, 5)]"
    (found,) = other_flags(Namespace(arch="fconv", **given), {"_name": "fconv", **saved})
    assert found == "with --decoder-layers [(8,3)], this model has [(8, 5)]"
    sizes = [Namespace(arch="lstm_lm_awd", hidden_sizes=text) for text in ("16  8", "16 8", "168")]
    assert not other_flags(sizes[0], sizes[1]) and other_flags(sizes[1], sizes[2])


def test_every_flag_that_is_not_compared_is_one_of_training():
    """A new flag that changes the function is compared; one that does not must be named here."""
    families = ("lstm_lm_awd", "lstm_encdec", "gated_lm", "transformer_full", "transformer_lm", "lstm", "lstm_lm")
    names = {name for arch in families for name in flag_names(ARCH_MODEL_REGISTRY[arch])}
    dropped = {name for name in names if "drop" in name or "noise" in name or name.endswith(("mask", "masks"))}
    started = {"init_range", "init_biases", "label_init", "gate_init_range"}
    started |= {"base_model", "encoder_embed_path", "decoder_embed_path"}
    started |= {"encoder_freeze_embed", "decoder_freeze_embed", "expert_warmup", "column_norm", "adversarial_epsilon"}
    computed = {"cuda_graphs", "output_chunk", "output_kernels", "output_loss", "output_precision"}
    computed |= {"checkpoint_activations", "offload_activations"}
    computed |= {"max_source_positions", "max_target_positions", "min_params_to_wrap", "decoder_layers_to_keep"}
    computed |= {"quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar", "base_shuffle"}
    shapes = {"base_layers", "base_sublayers", "tie_adaptive_proj", "tie_adaptive_weights", "share_embeddings"}
    shapes |= {"share_all_embeddings", "share_decoder_input_output_embed"}
    assert {name for name in names if OF_TRAINING.search(name)} == dropped | started | computed | shapes


@pytest.mark.parametrize(
    "saved, told",
    [
        (fairseq_plugins.__version__, None),
        ("0.0.9", None),
        ("0.10.0", "version 0.10.0"),
        (None, "an unknown version"),
    ],
)
def test_a_checkpoint_of_a_newer_or_unknown_version_is_told(saved, told, tmp_path, caplog):
    state = torch.load(SMALL_MODELS / "lstm_lm_doc.pt")
    assert state["extra_state"].pop("fairseq_plugins")
    state["extra_state"] |= {} if saved is None else {"fairseq_plugins": saved}
    torch.save(state, tmp_path / "model.pt")
    read_state(tmp_path / "model.pt")
    expected = f"the checkpoint is of {told} of fairseq_plugins, and this is {fairseq_plugins.__version__}"
    assert [message for message in caplog.messages if "version" in message] == ([] if told is None else [expected])
