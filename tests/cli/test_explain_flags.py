"""Flags of architectures, explained with the values of their presets."""

import re

import pytest

from fairseq_plugins.cli.explain_flags import ARCHITECTURES, ExplainFlags, flags_parser
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, translation


def explained(arch, capsys):
    ExplainFlags().main([arch])
    return capsys.readouterr().out


def helps_of(text):
    """The lines of each flag."""
    return re.split(r"^  (?=--)", text, flags=re.M)[1:]


def assert_explained(preset, text):
    told = {lines.split()[0]: " ".join(lines.split()) for lines in helps_of(text)}
    for flag, value in preset.model.items():
        assert f"(default: {value})" in told[f"--{flag.replace('_', '-')}"]


@pytest.mark.parametrize("arch", sorted(LANGUAGE_MODELS))
def test_flags_are_explained_with_the_values_of_the_preset(arch, capsys):
    text = explained(arch, capsys)
    assert_explained(LANGUAGE_MODELS[arch], text)
    assert "--tokens-per-sample " in text and "--balance " in text and "--eval-scorer" not in text
    optimizer = LANGUAGE_MODELS[arch].training.get("optimizer", "nt_asgd")
    assert ("--nonmonotone-interval " in text) == (optimizer == "nt_asgd")
    assert ("--initial-accumulator " in text) == (optimizer == "adagrad")


@pytest.mark.parametrize("arch", sorted(GATED_LANGUAGE_MODELS))
def test_flags_of_gated_models_are_explained_with_their_optimiser(arch, capsys):
    text = explained(arch, capsys)
    assert_explained(GATED_LANGUAGE_MODELS[arch], text)
    assert "--base-model " in text and "--tokens-per-sample " in text and "--adam-betas " in text
    assert "--nonmonotone-interval " not in text


@pytest.mark.parametrize("arch", sorted(translation.ENCODER_DECODER_ARCHITECTURES))
def test_flags_of_encoder_decoders_are_explained_without_those_of_language_models(arch, capsys):
    text = explained(arch, capsys)
    assert_explained(translation.ENCODER_DECODER_ARCHITECTURES[arch], text)
    assert "--balance " in text and "--init-range " in text and "--eval-scorer " in text
    assert "--eval-bleu" not in text and "--tokens-per-sample" not in text and "--nonmonotone-interval" not in text


@pytest.mark.parametrize("arch", sorted(LANGUAGE_MODELS.keys() | translation.ENCODER_DECODER_ARCHITECTURES.keys()))
def test_every_flag_of_a_recurrent_model_tells_its_default(arch):
    helps = helps_of(flags_parser(arch).format_help())
    assert [text.split()[0] for text in helps if "(default" not in text] == []


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_a_flag_has_one_default(arch):
    helps = re.split(r"^  (?=--)", flags_parser(arch).format_help(), flags=re.M)
    assert len(helps) > 10 and max(text.count("(default") for text in helps) == 1
