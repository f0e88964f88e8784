"""All commands: their list, their help, wrong command lines; explained flags of architectures."""

import argparse
import json
import re
import sys
from pathlib import Path

import pytest

import fairseq_plugins.cli
from fairseq_plugins.cli.__main__ import all_commands, main
from fairseq_plugins.cli.evaluate_lm import EvaluateLanguageModels
from fairseq_plugins.cli.explain_flags import ARCHITECTURES, ExplainFlags, flags_parser
from fairseq_plugins.cli.measure_rank import MeasureRank
from fairseq_plugins.cli.preset_flags import PresetFlags
from fairseq_plugins.cli.rescore_nbest import RescoreNbest
from fairseq_plugins.command_line import Command
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, translation

NOT_COMMANDS = {"__init__", "__main__"}
COMMANDS = all_commands()


def test_every_module_is_a_command_with_one_line(capsys):
    modules = {path.stem for path in Path(fairseq_plugins.cli.__path__[0]).glob("*.py")} - NOT_COMMANDS
    assert set(COMMANDS) == modules
    main([])
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line.split(None, 1)[1] == command.summary and command.summary.endswith(".") and len(line) < 130


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    command = COMMANDS[name]
    assert isinstance(command, Command) and sys.modules[type(command).__module__].__name__.endswith(f".cli.{name}")
    with pytest.raises(SystemExit) as error:
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert error.value.code == 0 and shown.split()[:4] == ["usage:", "python", "-m", f"fairseq_plugins.cli.{name}"]
    assert command.summary in shown and command.description in shown


def test_a_command_behind_the_package_is_answered_with_the_line_to_type(capsys):
    with pytest.raises(SystemExit) as error:
        main(["evaluate_lm", "my data", "--path", "a.pt"])
    told = capsys.readouterr().err
    assert error.value.code == 2
    assert told.endswith("type: python -m fairseq_plugins.cli.evaluate_lm 'my data' --path a.pt\n")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_list_that_is_given_in_parts_is_one(name):
    for action in COMMANDS[name].get_parser()._actions:
        if action.nargs not in ("+", "*") or not action.option_strings:
            continue
        namespace, flag = argparse.Namespace(**{action.dest: action.default}), action.option_strings[0]
        for value in ("1.pt", "2.pt"):
            action(None, namespace, [value], flag)
        assert getattr(namespace, action.dest) == ["1.pt", "2.pt"], flag


# arguments that are missing, unknown or in a wrong place: one line with the remedy and exit status 2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The data is there, and a text that was decoded before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dict.txt").touch()
    (tmp_path / "generate.txt").touch()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "name, typed, told",
    [
        ("evaluate_lm", "data", "arguments are required: --path"),
        ("evaluate_lm", "--path a.pt data", "argument --path: data is no model: give DATA first, before --path"),
        ("compare_runs", "--path A=save data --out o", "--path: data is no model: give DATA first, before --path"),
        ("evaluate_lm", "data more --path a.pt", "unrecognized arguments: more"),
        ("measure_rank", "data --path a.pt --postions 3", "unrecognized arguments: --postions 3"),
        ("measure_rank", "data --path a.pt:b.pt", "--path: give one checkpoint; there are 2"),
        ("compare_by_frequency", "data --path A=a.pt", "--path: give two models, the baseline first; there are 1"),
        ("compare_runs", "data --path A=save --reference r --out o", "go with --metric bleu or rouge"),
        ("evaluate_rouge", "data --path a.pt --lenpen 3 --out o", "--lenpen: flags of fairseq-generate come after --"),
        ("evaluate_translation", "typo --out o", "DATA: typo does not exist: give the directory that data-prep wrote"),
        ("evaluate_lm", "typo --path a.pt", "DATA: typo does not exist: give the directory that data-prep wrote"),
        ("evaluate_rouge", "generate.txt --reference r", "DATA: generate.txt is a file: give the directory that data"),
    ],
)
def test_one_line_with_the_remedy(name, typed, told, capsys):
    with pytest.raises(SystemExit) as error:
        COMMANDS[name].main(typed.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and told in line


# values that commands refuse, and results that are no numbers

FIXTURES = Path(__file__).parents[1] / "fixtures/small_models"
MODEL = [str(FIXTURES / "data/lm"), "--path", str(FIXTURES / "lstm_lm_doc.pt"), "--cpu"]


def test_an_infinite_perplexity_is_null_in_json(capsys):
    EvaluateLanguageModels().main([*MODEL, "--temperature", "1e-30", "--json"])
    figures = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert figures["perplexity"] is None and figures["nll"] > 1e20


def test_a_cache_needs_no_more_room_than_the_text(capsys):
    figures = []
    for window in (200, 10**13):
        flags = ["--cache", f"{window},0.1,1", "--cache-start", "first", "--unigram-cache", f"{window},0.1", "--json"]
        EvaluateLanguageModels().main([*MODEL, *flags])
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0]["nll"] == figures[1]["nll"]


def test_a_seed_that_no_search_has(tmp_path, capsys):
    with pytest.raises(SystemExit):
        RescoreNbest().main([*MODEL, "--tune", str(tmp_path / "weights.json"), "--seed", "-1"])
    assert capsys.readouterr().err.endswith("error: --seed -1: give 0 or more\n")


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--threshold", "nan"], "--threshold nan: give 0 or more"),
        (["--threshold", "inf"], "--threshold inf: give a finite value"),
        (["--threshold", "-1"], "--threshold -1.0: give 0 or more"),
    ],
)
def test_a_threshold_that_no_rank_has(flags, told, capsys):
    with pytest.raises(SystemExit) as error:
        MeasureRank().main([*MODEL, *flags])
    assert error.value.code == 2
    assert capsys.readouterr().err == f"python -m fairseq_plugins.cli.measure_rank: error: {told}\n"


# flags of architectures, explained with the values of their presets


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


# training flags of a paper's setting, for a command line


def lines_of(capsys, *arguments):
    PresetFlags().main(arguments)
    return set(capsys.readouterr().out.splitlines())


def test_flags_of_a_preset(capsys):
    lines = lines_of(capsys, "lstm_lm_mos_ptb")
    assert {"--arch=lstm_lm_mos_ptb", "--lr=20", "--batch-size=12", "--max-window=110"} <= lines
    tuned = lines_of(capsys, "lstm_lm_mos_ptb", "--fine-tune")
    assert {"--lr=25", "--averaging=immediate"} <= tuned and "--lr=20" not in tuned


def test_preset_without_training_flags_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        PresetFlags().main(["lstm_lm_zaremba_medium"])
    assert error.value.code == 2
    assert "lstm_lm_awd_ptb" in capsys.readouterr().err


def test_fine_tuning_that_the_paper_lacks_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        PresetFlags().main(["lstm_lm_zaremba_large_ptb", "--fine-tune"])
    assert error.value.code == 2
    assert "--arch lstm_lm_zaremba_large_ptb has no fine-tuning of its own" in capsys.readouterr().err
