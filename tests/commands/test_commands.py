"""All commands: their list, their help, wrong command lines; explained flags of architectures."""

import argparse
import json
import os
import re
import subprocess
from contextlib import suppress

import pytest
from paths import ROOT, SMALL_MODELS
from typed_commands import parser_of, refused, type_command
from warm_process import PYTHON

from fairseq_plugins.commands.app import COMMANDS, load_command, main
from fairseq_plugins.commands.flags import ARCHITECTURES
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, translation


def test_all_commands_are_listed_in_a_line_each(capsys):
    main([])
    listed = capsys.readouterr().out
    main(["--help"])
    assert capsys.readouterr().out == listed
    for name, (_, summary) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", listed, re.M) and summary.endswith(".")
    assert max(map(len, listed.splitlines())) <= 120


OF_FOLDERS = {"average", "compare runs", "compare curves", "analyze expert-history", "analyze generalization"}
WITH_CHECKPOINTS = [name for name in COMMANDS if "--path" in parser_of(name)._option_string_actions]


@pytest.mark.parametrize("name", sorted({*WITH_CHECKPOINTS} - OF_FOLDERS - {"ngram eval"}))
def test_the_folder_of_a_run_stands_for_its_checkpoint(name, tmp_path):
    (tmp_path / "checkpoint_best.pt").touch()
    action = parser_of(name)._option_string_actions["--path"]
    assert action.metavar in ("CKPT", "NAME=CKPT")
    for prefix in ("", "DOC=") if action.metavar == "NAME=CKPT" else ("",):
        given, args = action.type(f"{prefix}{tmp_path}"), argparse.Namespace(path=None)
        action(None, args, [given] if action.nargs else given, "--path")
        assert str(tmp_path / "checkpoint_best.pt") in str(args.path)


@pytest.mark.parametrize("typed", ["lm", "lm --help", "analyze -h"])
def test_a_prefix_lists_what_follows(typed, capsys):
    main(typed.split())
    listed = re.findall(r"^  (\S+ \S+)  ", capsys.readouterr().out, re.M)
    assert listed == [name for name in COMMANDS if name.split()[0] == typed.split()[0]]


@pytest.mark.parametrize(
    "typed, told",
    [
        ("lm evl data", "fairseq-plugins lm: error: evl: no such command (did you mean eval?), give one of"),
        ("trian", "fairseq-plugins: error: trian: no such command (did you mean train?), give one of train, run"),
        ("eval lm", "fairseq-plugins: error: eval: no such command"),
        ("--jason", "fairseq-plugins: error: --jason: no such command"),
    ],
)
def test_a_mistyped_command_is_one_line_that_names_the_nearest(typed, told, capsys):
    assert refused(typed, [], capsys).startswith(told)


def test_lists_need_neither_torch_nor_fairseq(tmp_path):
    """So they come at once, and say so where there is no fairseq."""
    for name in ("torch", "fairseq"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def typed(*words):
        command = [PYTHON, "-m", "fairseq_plugins", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert "lm eval" in typed("--help").stdout and typed("lm", "evl").returncode == 2
    without = typed("lm", "eval")
    assert without.stderr.startswith("fairseq-plugins lm eval: error: no fairseq in this Python")
    assert without.returncode == 2 and without.stderr.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as error:
        type_command(name, ["--help"])
    shown, command = capsys.readouterr().out, load_command(name)
    assert error.value.code == 0 and shown.startswith(f"usage: fairseq-plugins {name} ")
    assert COMMANDS[name][1] in shown and command.description.strip() in shown
    assert f"example:\n  fairseq-plugins {name} {command.example}" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_a_list_that_is_given_in_parts_is_one(name):
    for action in parser_of(name)._actions:
        if action.nargs not in ("+", "*") or not action.option_strings:
            continue
        namespace, flag = argparse.Namespace(**{action.dest: action.default}), action.option_strings[0]
        for value in ("1.pt", "2.pt"):
            action(None, namespace, [value], flag)
        assert getattr(namespace, action.dest) == ["1.pt", "2.pt"], flag


def test_no_whole_number_is_negative_and_few_may_be_0():
    """ROUGE itself checks its two."""

    def takes(action, text):
        with suppress(ValueError):
            return type(action.type(text)) is int

    actions = [action for name in COMMANDS for action in parser_of(name)._actions if action.type]
    actions = [action for action in actions if takes(action, "7")]
    assert {action.dest for action in actions if takes(action, "-1")} == {"max_bytes", "max_words"}
    may_be_zero = {"max_bytes", "max_words", "min_count", "port", "restarts", "seed", "seeds"}
    assert {action.dest for action in actions if takes(action, "0")} == may_be_zero and len(actions) > 50


# results that are no numbers, and large numbers

MODEL = [str(SMALL_MODELS / "data/lm"), "--path", str(SMALL_MODELS / "lstm_lm_doc.pt"), "--cpu"]


def test_an_infinite_perplexity_is_null_in_json(capsys):
    type_command("lm eval", [*MODEL, "--temperature", "1e-30", "--json"])
    figures = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert figures["perplexity"] is None and figures["nll"] > 1e20


def test_a_cache_needs_no_more_room_than_the_text(capsys):
    figures = []
    for window in (200, 10**13):
        flags = ["--cache", f"{window},0.1,1", "--cache-start", "first", "--unigram-cache", f"{window},0.1", "--json"]
        type_command("lm eval", [*MODEL, *flags])
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0]["nll"] == figures[1]["nll"]


def test_more_sentences_may_be_asked_for_than_there_are(tmp_path):
    (tmp_path / "line").write_text("the dog eats .\n")
    flags = ["--input", tmp_path / "line", "--tokenised", "--num", 10**15, "--out", tmp_path / "maps"]
    type_command("analyze experts", [*MODEL, *flags])
    assert [path.name for path in (tmp_path / "maps").iterdir()] == ["sentence_1.png"]


# flags of architectures, explained with the values of their presets


OF_EACH_KIND = {(*preset.model, preset.training.get("optimizer")): arch for arch, preset in ARCHITECTURES.items()}
"""One architecture for each set of flags, and optimiser."""


@pytest.mark.parametrize("arch", OF_EACH_KIND.values())
def test_flags_are_explained_with_the_values_of_the_preset(arch, capsys):
    type_command("flags", [arch])
    of_flags = re.split(r"^  (?=--)", capsys.readouterr().out, flags=re.M)[1:]
    told = {lines.split()[0]: " ".join(lines.split()) for lines in of_flags}
    for flag, value in ARCHITECTURES[arch].model.items():
        assert f"(default: {value})" in told[f"--{flag.replace('_', '-')}"]
    assert max(lines.count("(default") for lines in told.values()) == 1
    if arch in LANGUAGE_MODELS or arch in translation.ENCODER_DECODER_ARCHITECTURES:
        assert [flag for flag, lines in told.items() if "(default" not in lines] == []
    optimizer = ARCHITECTURES[arch].training.get("optimizer", "nt_asgd")
    expected = {
        "--tokens-per-sample": arch in LANGUAGE_MODELS or arch in GATED_LANGUAGE_MODELS,
        "--base-model": arch in GATED_LANGUAGE_MODELS,
        "--nonmonotone-interval": arch in LANGUAGE_MODELS and optimizer == "nt_asgd",
        "--initial-accumulator": arch in LANGUAGE_MODELS and optimizer == "adagrad",
        "--adam-betas": arch in GATED_LANGUAGE_MODELS or optimizer == "l2_adam" and arch in LANGUAGE_MODELS,
        "--eval-scorer": not (arch in LANGUAGE_MODELS or arch in GATED_LANGUAGE_MODELS),
        "--balance": True,
    }
    assert {flag: flag in told for flag in expected} == expected


# training flags of a paper's setting, for a command line


def test_flags_of_a_preset(capsys):
    type_command("flags", ["lstm_lm_mos_ptb", "--training"])
    lines = capsys.readouterr().out.splitlines()
    assert {"--arch=lstm_lm_mos_ptb", "--lr=20", "--batch-size=12", "--max-window=110"} <= {*lines}
    told = "--training: lstm_lm_zaremba_medium has no training of its own"
    assert told in refused("flags", ["lstm_lm_zaremba_medium", "--training"], capsys)
