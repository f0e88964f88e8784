"""Values of the presets against the papers and their programs, numbers of parameters, and what a preset changes."""

import math
from argparse import ArgumentParser, Namespace

import pytest
import torch
from builders import build_encdec, build_lm
from fairseq import options
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.optim.sgd import SGD as FairseqSGD
from paths import ROOT

from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, apply_preset, as_arguments
from fairseq_plugins.models.presets.translation import ENCODER_DECODER_ARCHITECTURES, TRANSFORMER_ARCHITECTURES
from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoder
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.optim.adaptive import L2Adam

PRESETS = {**LANGUAGE_MODELS, **GATED_LANGUAGE_MODELS, **ENCODER_DECODER_ARCHITECTURES, **TRANSFORMER_ARCHITECTURES}
PTB, WT2, WT103 = 10_000, 33_278, 267_735  # sizes of the vocabularies

TABLES = sorted((ROOT / "tests/fixtures/presets").glob("*.tsv"))
"""Values by paper, a row a flag and a column an architecture. A cell is empty where a preset leaves the flag alone."""


def flat(preset):
    """The values of a preset as text, by part and flag."""
    parts = {"model": preset.model, **{f"model if {name}": flags for name, flags in preset.output_layers.items()}}
    parts.update({"training": preset.training, "fine-tuning": preset.fine_tuning or {}})
    return {f"{part} {flag}": str(value) for part, flags in parts.items() for flag, value in flags.items()}


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_values_are_those_recorded_by_paper(table):
    (_, *archs), *rows = (line.split("\t") for line in table.read_text(encoding="utf-8").splitlines())
    for arch, *column in zip(archs, *(cells for _, *cells in rows)):
        recorded = {name: value for (name, *_), value in zip(rows, column) if value}
        assert flat(PRESETS[arch]) == recorded, arch


def test_every_preset_is_recorded_once():
    archs = [arch for table in TABLES for arch in table.read_text(encoding="utf-8").partition("\n")[0].split("\t")[1:]]
    assert sorted(archs) == sorted(PRESETS), "tests/fixtures/presets has a column for each preset"


FAMILIES = [f"lstm_lm_{family}" for family in ("zaremba", "variational")]
COUNTS = [
    # preset, vocabulary, flags, parameters; for other networks see test_recipes_language_models.py
    ("lstm_lm_awd_ptb", PTB, {}, 24_221_600),
    ("lstm_lm_awd_wt2", WT2, {}, 33_556_078),
    ("lstm_lm_full_ptb", PTB, {}, 43_827_600),
    ("lstm_lm_bilinear_ptb", PTB, {}, 24_381_600),
    ("lstm_lm_dual_ptb", PTB, {}, 24_542_400),
    ("lstm_lm_drill_ptb", PTB, {}, 24_863_200),
    ("lstm_lm_drill_wt2", WT2, {}, 34_197_678),
    ("lstm_lm_mos_ptb", PTB, {}, 21_500_620),
    ("lstm_lm_mos_wt2", WT2, {}, 34_909_528),
    ("lstm_lm_mos_ptb", PTB, {"experts_per_layer": "0 0 0 20"}, 22_373_120),
    ("lstm_lm_doc_ptb", PTB, {}, 22_849_120),
    ("lstm_lm_doc_wt2", WT2, {}, 36_639_278),
    ("lstm_lm_doc_ptb", 6_922, {}, 21_984_202),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "5 0 0 15"}, 21_897_120),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "0 5 0 15"}, 22_849_120),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "0 5 5 10"}, 23_325_120),
    ("lstm_lm_doc_ptb", PTB, {"experts_per_layer": "5 0 5 10"}, 22_373_120),
    ("fpnn_lm_ptb", PTB, {"column_norm": 0.0}, 10_240_512),
    ("rectifier_rnn_lm_ptb", PTB, {"column_norm": 0.0}, 10_502_144),
    ("mmlstm_lm_mos_ptb", PTB, {}, 21_315_276),
    ("mmlstm_lm_mos_wt2", WT2, {}, 32_257_528),
    ("mmlstm_lm_ptb", PTB, {}, 24_211_856),
    ("mmlstm_lm_wt103", WT103, {}, 75_166_871),
    # two layers are as wide as 24 million parameters allow
    ("mogrifier_lm_ptb", PTB, {}, 23_986_480),
    ("mogrifier_lm_ptb", PTB, {"embed_dim": 913, "hidden_sizes": "913 913"}, 24_027_378),
    ("rhn_lm_ptb", PTB, {}, 32_082_040),
    ("rhn_lm_tied_ptb", PTB, {}, 23_182_040),
    ("rhn_lm_tied_wt2", WT2, {}, 43_922_738),
    *((f"{family}_medium_ptb", PTB, {}, 19_775_200) for family in FAMILIES),
    *((f"{family}_medium_wt2", WT2, {}, 50_059_878) for family in FAMILIES),
    *((f"{family}_large_ptb", PTB, {}, 66_022_000) for family in FAMILIES),
]


def on_meta(arch, source_size, vocab_size=None, **flags):
    """A model without memory; an encoder-decoder where there are two vocabularies."""
    with torch.device("meta"):
        if vocab_size is None:
            return build_lm(arch, source_size, **flags)
        return build_encdec(arch, source_size, vocab_size, **flags)


def count(model):
    return sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize("arch, vocab_size, flags, expected", COUNTS)
def test_parameter_count(arch, vocab_size, flags, expected):
    assert count(on_meta(arch, vocab_size, **flags)) == expected


@pytest.mark.parametrize("num_bases", [1, 2])
@pytest.mark.parametrize(
    "arch, vocab_size, gate, base",
    [("gated_lm_ptb", PTB, 6_010_000, 19_775_200), ("gated_lm_wt2", WT2, 20_000_078, 50_059_878)],
)
def test_parameter_count_of_a_gate(arch, vocab_size, gate, base, num_bases):
    """Table 2 has 20M and 26M; of an ensemble each member counts, and the gate once."""
    flags = {"arch": "lstm_lm_zaremba_medium_ptb", **LANGUAGE_MODELS["lstm_lm_zaremba_medium_ptb"].model}
    model = on_meta(arch, vocab_size, base_model_flags=[flags] * num_bases)
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad == learns) for learns in (True, False)]
    assert counts == [gate, num_bases * base]


@pytest.mark.parametrize(
    "arch, num_source, num_target, expected",
    [
        ("lstm_encdec_iwslt", 12_000, 11_000, 30_785_000),
        ("lstm_encdec_mos_iwslt", 12_000, 11_000, 31_287_000),
        ("lstm_encdec_doc_iwslt", 12_000, 11_000, 31_789_000),
        ("lstm_encdec_doc_gigaword", 5_000, 5_000, 15_467_400),
    ],
)
def test_parameter_count_of_a_translator(arch, num_source, num_target, expected):
    assert count(on_meta(arch, num_source, num_target)) == expected


@pytest.mark.parametrize(
    "arch, width, millions", [("lstm_encdec_wmt14", 1000, 170.7), ("mmlstm_encdec_wmt14", 1070, 172.8)]
)
def test_parameter_count_of_wmt14(arch, width, millions):
    """Table XI, with 33,200 words on either side; the paper's LSTMs have one bias vector, the library's two."""
    second_biases = 2 * 4 * 4 * width  # of four layers on either side
    assert round((count(on_meta(arch, 33_200, 33_200)) - second_biases) / 1e6, 1) == millions


# learning rates


def constant_then_falling(num_constant, divisor, start=1.0):
    return lambda epoch: start * divisor ** -max(0, epoch - num_constant)


RATES = {
    "lstm_lm_zaremba_medium_ptb": constant_then_falling(6, 1.2),
    "lstm_lm_variational_large_ptb": constant_then_falling(14, 1.15),
    "rhn_lm_tied_wt2": constant_then_falling(20, 1.02, start=0.2),
    "gated_lm_ptb": lambda epoch: 0.001 / epoch**0.5,
}


@pytest.mark.parametrize("arch", RATES)
def test_the_rate_of_every_epoch_is_the_papers(arch):
    """As fairseq's scheduler, from the flags of the preset, sets it at the start of each epoch."""
    training = PRESETS[arch].training
    command = ["data", f"--arch={arch}", *as_arguments(training)]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=command)
    optimizer = (L2Adam if arch in GATED_LANGUAGE_MODELS else FairseqSGD)(args, [torch.nn.Parameter(torch.zeros(1))])
    scheduler, epochs = build_lr_scheduler(args, optimizer), range(1, training["max-epoch"] + 1)
    rates = [scheduler.step_begin_epoch(epoch) for epoch in epochs]
    assert rates == pytest.approx([RATES[arch](epoch) for epoch in epochs], rel=1e-12)
    assert scheduler.step_update(1000) == rates[-1] and not optimizer.optimizer.defaults.get("momentum")


# presets as models have them


@pytest.mark.parametrize(
    "presets, model, size",
    [(LANGUAGE_MODELS, RecurrentLanguageModel, [50]), (ENCODER_DECODER_ARCHITECTURES, RecurrentEncoderDecoder, [9, 8])],
)
def test_presets_build_set_declared_flags_only_and_give_way_to_given_ones(presets, model, size):
    parser = ArgumentParser()
    model.add_args(parser)
    declared = {action.dest for action in parser._actions}
    for arch, preset in presets.items():
        assert set(preset.model) <= declared, arch
        on_meta(arch, *size)
        args = Namespace(embed_dim=7, dropout_output=0.0)
        apply_preset(preset, args)
        assert (args.embed_dim, args.dropout_output, args.hidden_sizes) == (7, 0.0, preset.model["hidden_sizes"])


def test_presets_reach_the_model():
    decoder = on_meta("lstm_lm_awd_ptb", 50).decoder
    rates = [decoder.embedding.rate, decoder.input_dropout.rate, decoder.stack.layers[0].rate]
    assert rates == [0.1, 0.4, 0.5]
    assert on_meta("lstm_lm_doc_ptb", 50).decoder.output.latent_dropout.rate == 0.6
    model = on_meta("lstm_encdec_doc_iwslt", 30, 40)
    assert [dropout.rate for dropout in model.decoder.stack.stack.dropouts] == [0.3] * 2
    assert [dropout.rate for part in model.encoder.stack.stacks for dropout in part.dropouts] == [0.3, 0.0] * 2
    assert model.decoder.output.experts_per_layer == [0, 0, 2, 2] and model.decoder.output.latent_dropout.rate == 0.0


@pytest.mark.parametrize("arch", ["fpnn_lm_text8_chars", "skipping_rnn_lm_text8_chars"])
def test_networks_of_characters_leave_their_start(arch):
    """Of 26 characters, each of which is followed by one of two."""
    sizes = dict(embed_dim=64, hidden_sizes="64")
    sizes.update({"word_skip": "w0"} if "skipping" in arch else {"output_hidden_size": 64} if "fpnn" in arch else {})
    torch.manual_seed(1)
    model, training = build_lm(arch, 30, **sizes).train(), LANGUAGE_MODELS[arch].training
    assert training["optimizer"] == "adagrad"
    optimizer = torch.optim.Adagrad(model.parameters(), lr=training["lr"])
    steps = torch.randint(1, 3, (80, 16, 21)).cumsum(dim=2) % 26 + 4
    found = []
    for window in steps:
        optimizer.zero_grad()
        loss, _ = model(window[:, :-1], target=window[:, 1:])
        (loss / window[:, 1:].numel()).backward()
        optimizer.step()
        found.append(loss.item() / window[:, 1:].numel())
    assert found[0] == pytest.approx(math.log(30), abs=0.02) and found[-1] < 2.5


@pytest.mark.parametrize("arch", ["skipping_rnn_lm", "skipping_rnn_lm_text8_chars"])
def test_another_cell_with_the_skip_of_the_preset_has_its_slow_matrices_too(arch):
    for typed in ({}, {"word_skip": "_"}):
        args = Namespace(rnn_cell="diagonal", **typed)
        apply_preset(LANGUAGE_MODELS[arch], args)
        assert (args.word_skip, args.recurrent_scale) == ("_", LANGUAGE_MODELS[arch].model["recurrent_scale"])


def test_a_small_encoder_decoder_drops_values_once_right_before_every_softmax():
    for flags, of_latents, of_states in (
        ({"arch": "mmlstm_encdec"}, None, 0.3),
        ({"arch": "lstm_encdec_doc", "rnn_cell": "mmlstm"}, 0.3, 0.0),
        ({"arch": "mmlstm_encdec", "output_layer": "mos"}, 0.3, 0.0),
        ({"arch": "mmlstm_encdec_doc", "output_layer": "full"}, None, 0.3),
        ({"arch": "lstm_encdec_doc", "dropout_output": 0.1, "latent_dropout": 0.2}, 0.2, 0.1),
        ({"arch": "lstm_encdec_iwslt", "output_layer": "doc"}, 0.0, 0.3),  # as published
    ):
        decoder = on_meta(flags.pop("arch"), 30, 40, **flags).decoder
        assert decoder.stack.stack.dropouts[-1].rate == of_states, flags
        latent = getattr(decoder.output, "latent_dropout", None)
        assert (None if latent is None else latent.rate) == of_latents, flags
