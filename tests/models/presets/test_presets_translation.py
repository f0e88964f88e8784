"""Presets of the encoder-decoders against Takase et al. 2018, section 5.2, and Shuang et al. 2020, table XI."""

import argparse
from argparse import Namespace

import pytest
import torch
from builders import build_encdec
from fairseq import options

from fairseq_plugins.models.presets import apply_preset
from fairseq_plugins.models.presets.translation import ENCODER_DECODER_ARCHITECTURES, TRANSFORMER_ARCHITECTURES
from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoder
from fairseq_plugins.modules.attention import DotAttention, GeneralAttention

every_architecture = pytest.mark.parametrize("arch", sorted(ENCODER_DECODER_ARCHITECTURES))


def count_by_hand(*, source_size, vocab_size, width, num_experts):
    """Parameters where embedding and hidden layers have one width and no matrix is shared (C.2)."""

    def lstm(num_inputs):
        return 4 * width * (num_inputs + width) + 8 * width

    embeddings = (source_size + vocab_size) * width
    encoder = 2 * 2 * lstm(width)
    decoder = lstm(width + width) + lstm(width)  # the first layer reads the embedding and h~
    attention = width * width + width * 2 * width
    output = vocab_size * width + vocab_size
    experts = num_experts * (width * width + width) + num_experts * width
    return embeddings + encoder + decoder + attention + output + experts


@pytest.mark.parametrize(
    "arch, source_size, vocab_size, width, num_experts, expected",
    [
        ("lstm_encdec_iwslt", 12_000, 11_000, 500, 0, 30_785_000),
        ("lstm_encdec_mos_iwslt", 12_000, 11_000, 500, 2, 31_287_000),
        ("lstm_encdec_doc_iwslt", 12_000, 11_000, 500, 4, 31_789_000),
        ("lstm_encdec_gigaword", 5_000, 5_000, 400, 0, 14_824_200),
        ("lstm_encdec_mos_gigaword", 5_000, 5_000, 400, 2, 15_145_800),
        ("lstm_encdec_doc_gigaword", 5_000, 5_000, 400, 4, 15_467_400),
    ],
)
def test_parameter_count(arch, source_size, vocab_size, width, num_experts, expected, build_encdec):
    with torch.device("meta"):
        model = build_encdec(arch, source_size, vocab_size)
    by_hand = count_by_hand(source_size=source_size, vocab_size=vocab_size, width=width, num_experts=num_experts)
    assert sum(param.numel() for param in model.parameters()) == by_hand == expected


@pytest.mark.parametrize(
    "arch, width, sizes, millions",
    [
        ("lstm_encdec_wmt14", 1000, [(1000, 0)] * 4, 170.7),
        ("mmlstm_encdec_wmt14", 1070, [(749, 321), (749, 321), (856, 214), (963, 107)], 172.8),
    ],
)
def test_parameter_count_of_wmt14(arch, width, sizes, millions, build_encdec):
    """Table XI, with 33,200 words on either side; the paper's LSTMs have one bias vector, the library's two."""
    num_words, embed = 33_200, 1000

    def layers(first_inputs, num_biases):
        below, count = first_inputs, 0
        for major, minor in sizes:
            count += 4 * major * (below + major + num_biases) + 4 * minor * (first_inputs + minor + num_biases)
            below = width
        return count

    def total(num_biases):
        recurrent = layers(embed, num_biases) + layers(embed + width, num_biases)
        attention = width * width + width * 2 * width
        return 2 * num_words * embed + num_words * (width + 1) + recurrent + attention

    with torch.device("meta"):
        model = build_encdec(arch, num_words, num_words)
    assert sum(param.numel() for param in model.parameters()) == total(num_biases=2)
    assert round(total(num_biases=1) / 1e6, 1) == millions


@pytest.mark.parametrize("corpus", ["", "_wmt14"])
def test_major_minor_differs_in_its_layers_only(corpus):
    plain, ours = (ENCODER_DECODER_ARCHITECTURES[f"{name}_encdec{corpus}"].model for name in ("lstm", "mmlstm"))
    changed = {flag for flag, value in ours.items() if plain.get(flag) != value}
    assert changed - {"hidden_sizes"} == {"rnn_cell", "major_proportions"} and set(plain) <= set(ours)


def test_wmt14_is_the_model_of_luong_et_al():
    expected = dict(
        embed_dim=1000,
        hidden_sizes="1000 1000 1000 1000",
        encoder_directions="forward",
        attention="general",
        input_feeding="on",
        dropout=0.2,
        init_range=0.1,
        share_embeddings="none",
        output_layer="full",
    )
    assert expected.items() <= ENCODER_DECODER_ARCHITECTURES["lstm_encdec_wmt14"].model.items()


@pytest.mark.parametrize("corpus, width", [("iwslt", 500), ("gigaword", 400)])
@pytest.mark.parametrize("layer, experts", [("", None), ("_mos", "0 0 0 2"), ("_doc", "0 0 2 2")])
def test_settings_of_the_paper(corpus, width, layer, experts):
    expected = dict(
        rnn_cell="lstm",
        embed_dim=width,
        hidden_sizes=f"{width} {width}",
        encoder_directions="both",
        encoder_merge="top",
        attention="general",
        input_feeding="on",
        dropout=0.3,
        share_embeddings="none",
        init_range=0.1,
        output_layer=layer.strip("_") or "full",
    )
    if experts:
        expected.update(experts_per_layer=experts, latent_dropout=0.0)
    assert ENCODER_DECODER_ARCHITECTURES[f"lstm_encdec{layer}_{corpus}"].model == expected


def test_the_paper_starts_all_parameters_within_a_tenth(build_encdec):
    model = build_encdec("lstm_encdec_doc_gigaword", 30, 40)
    for name, param in model.named_parameters():
        assert param.abs().max() <= 0.1, name
        assert param.numel() < 100 or param.abs().max() > 0.09, name


def test_the_output_layers_differ_in_their_output_layer_only():
    for corpus in ("", "_iwslt", "_gigaword"):
        full, *others = (
            ENCODER_DECODER_ARCHITECTURES[f"lstm_encdec{layer}{corpus}"].model for layer in ("", "_mos", "_doc")
        )
        for other in others:
            changed = {flag for flag, value in other.items() if full.get(flag) != value}
            own = {"output_layer", "experts_per_layer", "latent_dropout"}
            small = {"attention", "expert_warmup", "dropout_output"}
            assert own <= changed <= (own | small if corpus == "" else own)


@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
def test_a_small_encoder_decoder_drops_values_once_right_before_every_softmax(cell, build_encdec):
    for flags, of_latents, of_states in (
        ({"arch": f"{cell}_encdec"}, None, 0.3),
        ({"arch": f"{cell}_encdec_doc"}, 0.3, 0.0),
        ({"arch": "lstm_encdec_mos", "rnn_cell": cell}, 0.3, 0.0),
        ({"arch": f"{cell}_encdec", "output_layer": "mos"}, 0.3, 0.0),
        ({"arch": f"{cell}_encdec_doc", "output_layer": "full"}, None, 0.3),
        ({"arch": f"{cell}_encdec_doc", "dropout_output": 0.1, "latent_dropout": 0.2}, 0.2, 0.1),
        ({"arch": "lstm_encdec_doc_iwslt", "rnn_cell": cell}, 0.0, 0.3),
        ({"arch": "lstm_encdec_iwslt", "rnn_cell": cell, "output_layer": "doc"}, 0.3, 0.3),
    ):
        with torch.device("meta"):
            decoder = build_encdec(flags.pop("arch"), 30, 40, **flags).decoder
        assert decoder.stack.dropout.rate == decoder.stack.stack.dropouts[-1].rate == of_states, flags
        latent = getattr(decoder.output, "latent_dropout", None)
        assert (None if latent is None else latent.rate) == of_latents, flags


def test_small_attentions_under_one_softmax_have_no_matrix_and_all_others_have_one(build_encdec):
    others = {
        ("lstm_encdec", "doc"): {"output_layer": "doc"},
        ("lstm_encdec_doc", "full"): {"output_layer": "full"},
        ("lstm_encdec_doc", "dot"): {"attention": "dot"},
    }
    found = {}
    for names, more in {**{(arch,): {} for arch in ENCODER_DECODER_ARCHITECTURES}, **others}.items():
        with torch.device("meta"):
            attention = build_encdec(names[0], 30, 40, **more).decoder.stack.attention
        found[names] = type(attention)
    without_matrix = {names for names, kind in found.items() if kind is DotAttention}
    assert without_matrix == {
        ("lstm_encdec",),
        ("mmlstm_encdec",),
        ("lstm_encdec_doc", "full"),
        ("lstm_encdec_doc", "dot"),
    }
    assert set(found.values()) == {DotAttention, GeneralAttention}


def test_the_small_doc_learns_its_attention_first_and_the_papers_settings_stay_as_they_are():
    waiting = {name for name, preset in ENCODER_DECODER_ARCHITECTURES.items() if "expert_warmup" in preset.model}
    assert waiting == {"lstm_encdec_doc", "mmlstm_encdec_doc"}


@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
def test_docs_attention_is_learned_first_wherever_a_small_encoder_decoder_has_doc(cell, build_encdec):
    for flags, expected in (
        ({"arch": f"{cell}_encdec_doc"}, 1000),
        ({"arch": f"{cell}_encdec", "output_layer": "doc"}, 1000),
        ({"arch": "lstm_encdec_mos", "rnn_cell": cell, "output_layer": "doc"}, 1000),
        ({"arch": f"{cell}_encdec", "output_layer": "doc", "expert_warmup": 0}, 0),
        ({"arch": "lstm_encdec_doc_iwslt", "rnn_cell": cell}, 0),
        ({"arch": "lstm_encdec_iwslt", "rnn_cell": cell, "output_layer": "doc"}, 0),
    ):
        with torch.device("meta"):
            model = build_encdec(flags.pop("arch"), 30, 40, **flags)
        assert model.decoder.output.expert_warmup == expected, flags


def test_presets_reach_the_model(build_encdec):
    with torch.device("meta"):
        model = build_encdec("lstm_encdec_doc_iwslt", 30, 40)
    rates = [dropout.rate for dropout in (*model.decoder.stack.stack.dropouts, model.decoder.stack.dropout)]
    assert rates == [0.3] * 3
    assert [dropout.rate for part in model.encoder.stack.stacks for dropout in part.dropouts] == [0.3, 0.0] * 2
    assert model.decoder.output.experts_per_layer == [0, 0, 2, 2]
    assert model.decoder.output.latent_dropout.rate == 0.0


@every_architecture
def test_a_given_flag_beats_the_preset(arch):
    args = Namespace(embed_dim=7, dropout=0.0)
    apply_preset(ENCODER_DECODER_ARCHITECTURES[arch], args)
    assert args.embed_dim == 7 and args.dropout == 0.0
    assert args.hidden_sizes == ENCODER_DECODER_ARCHITECTURES[arch].model["hidden_sizes"]


@every_architecture
def test_another_output_layer_drops_the_presets_options_that_it_does_not_have(arch, build_encdec):
    with torch.device("meta"):
        model = build_encdec(arch, 30, 40, output_layer="full")
    assert model.decoder.output.name == "full"


@every_architecture
def test_every_preset_builds_and_sets_declared_flags_only(arch, build_encdec):
    parser = argparse.ArgumentParser()
    RecurrentEncoderDecoder.add_args(parser)
    assert set(ENCODER_DECODER_ARCHITECTURES[arch].model) <= {action.dest for action in parser._actions}
    with torch.device("meta"):
        build_encdec(arch, 30, 40)


@every_architecture
def test_fairseq_knows_the_architecture_and_its_preset(arch):
    command = ["data", f"--arch={arch}", "--task=translation", "--criterion=regularized_cross_entropy"]
    args = vars(options.parse_args_and_arch(options.get_training_parser(), input_args=command))
    assert {flag: args[flag] for flag in ENCODER_DECODER_ARCHITECTURES[arch].model} == ENCODER_DECODER_ARCHITECTURES[
        arch
    ].model


TAKASE = {
    "lr": 0.001,
    "sentence-avg": True,
    "batch-size": 256,
    "max-epoch": 15,
    "force-anneal": 10,
    "rnn-biases": "one",
}


@pytest.mark.parametrize(
    "corpus, expected",
    [
        ("", {"lr": 0.004, "batch-size": 64, "max-epoch": 5, "force-anneal": 4}),
        ("_iwslt", TAKASE),
        ("_gigaword", TAKASE),
    ],
)
def test_training_is_adam_whose_rate_is_halved_every_epoch_in_the_end(corpus, expected):
    common = {"optimizer": "adam", "clip-norm": 5, "lr-scheduler": "fixed", "lr-shrink": 0.5}
    parts = {"task": "translation", "criterion": "regularized_cross_entropy", "distributed-world-size": 1}
    for layer in ("", "_mos", "_doc"):
        assert ENCODER_DECODER_ARCHITECTURES[f"lstm_encdec{layer}{corpus}"].training == {**common, **parts, **expected}


def test_major_minor_is_trained_as_its_baseline():
    for corpus in ("", "_wmt14"):
        assert (
            ENCODER_DECODER_ARCHITECTURES[f"mmlstm_encdec{corpus}"].training
            == ENCODER_DECODER_ARCHITECTURES[f"lstm_encdec{corpus}"].training
        )


@pytest.mark.parametrize(
    "arch", ["lstm_encdec_iwslt", "lstm_encdec_doc_gigaword", "lstm_encdec_wmt14", "mmlstm_encdec_wmt14"]
)
def test_published_trainings_have_one_bias_vector(arch):
    def biases(**flags):
        model = build_encdec(arch, 9, 9, embed_dim=8, hidden_sizes="16 16 16 16" if "wmt" in arch else "8 8", **flags)
        return {name.rpartition(".")[2][:7] for name, _ in model.named_parameters() if ".bias_" in name}

    assert ENCODER_DECODER_ARCHITECTURES[arch].training["rnn-biases"] == "one"
    assert biases(rnn_biases="one") == {"bias_ih"} and biases() == {"bias_ih", "bias_hh"}


LAYERS = ("full", "bilinear", "dual", "drill", "mos", "doc")


@pytest.mark.parametrize("corpus", ["", "_iwslt", "_wmt14"])
def test_all_output_layers_are_trained_alike_by_smoothed_labels_and_adam(corpus):
    training = TRANSFORMER_ARCHITECTURES[f"transformer_full{corpus}"].training
    assert all(TRANSFORMER_ARCHITECTURES[f"transformer_{layer}{corpus}"].training == training for layer in LAYERS)
    common = {"label-smoothing": 0.1, "optimizer": "adam", "lr-scheduler": "inverse_sqrt", "task": "translation"}
    assert common.items() <= training.items() and {"max-epoch", "max-update"} & set(training)


def test_wmt14_has_two_batches_an_update_and_twice_the_rate_of_vaswani_et_al_at_its_peak():
    training = TRANSFORMER_ARCHITECTURES["transformer_full_wmt14"].training
    expected = {"max-tokens": 4096, "update-freq": 2, "max-update": 350_000, "adam-betas": "(0.9, 0.998)"}
    assert expected.items() <= training.items()
    assert training["lr"] == pytest.approx(2 * (512 * training["warmup-updates"]) ** -0.5, rel=1e-5)
    assert (training["warmup-updates"], training["warmup-init-lr"]) == (8000, 0)
