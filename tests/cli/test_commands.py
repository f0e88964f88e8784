import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_plugins.cli import evaluate_translation, explain_flags, preset_flags
from fairseq_plugins.models.presets import LANGUAGE_MODELS, encoder_decoders

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path for path in (*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("data-prep/*/*.sh")) if path.name != "lib.sh"
)


def output_of(main, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    main()
    return capsys.readouterr().out


def assert_explained(preset, text):
    for flag, value in preset.model.items():
        assert f"--{flag.replace('_', '-')} " in text
        assert f"(default: {value})" in " ".join(text.split())


@pytest.mark.parametrize("arch", sorted(LANGUAGE_MODELS))
def test_flags_are_explained_with_the_values_of_the_preset(arch, monkeypatch, capsys):
    text = output_of(explain_flags.ExplainFlags().main, [arch], monkeypatch, capsys)
    assert_explained(LANGUAGE_MODELS[arch], text)
    assert "--tokens-per-sample " in text and "--balance " in text
    averages = LANGUAGE_MODELS[arch].training.get("optimizer", "nt_asgd") == "nt_asgd"
    assert ("--nonmonotone-interval " in text) == averages


@pytest.mark.parametrize("arch", sorted(encoder_decoders.ARCHITECTURES))
def test_flags_of_encoder_decoders_are_explained_without_those_of_language_models(arch, monkeypatch, capsys):
    text = output_of(explain_flags.ExplainFlags().main, [arch], monkeypatch, capsys)
    assert_explained(encoder_decoders.ARCHITECTURES[arch], text)
    assert "--balance " in text and "--init-range " in text
    assert "--tokens-per-sample" not in text and "--nonmonotone-interval" not in text


@pytest.mark.parametrize("arch", sorted(explain_flags.ARCHITECTURES))
def test_a_flag_has_one_default(arch):
    helps = re.split(r"^  (?=--)", explain_flags.flags_parser(arch).format_help(), flags=re.M)
    assert len(helps) > 10 and max(text.count("(default") for text in helps) == 1


def test_flags_of_a_preset(monkeypatch, capsys):
    main = preset_flags.PresetFlags().main
    lines = output_of(main, ["lstm_lm_mos_ptb"], monkeypatch, capsys).splitlines()
    assert {"--arch=lstm_lm_mos_ptb", "--lr=20", "--batch-size=12", "--max-window=110"} <= set(lines)
    tuned = output_of(
        preset_flags.PresetFlags().main, ["lstm_lm_mos_ptb", "--fine-tune"], monkeypatch, capsys
    ).splitlines()
    assert {"--lr=25", "--averaging=immediate"} <= set(tuned) and "--lr=20" not in tuned


def test_a_system_against_itself_is_no_difference(tmp_path, monkeypatch, capsys):
    lines = ["ein kleines Haus steht hier .", "das Haus ist alt , sagt er .", "hier steht ein Haus ."]
    (tmp_path / "reference").write_text("".join(f"{line}\n" for line in lines))
    generated = tmp_path / "generate.txt"
    generated.write_text("".join(f"T-{n}\t{line}\nH-{n}\t-1\t{line[:-2]} !\n" for n, line in enumerate(lines)))
    arguments = [str(generated), "--reference", str(tmp_path / "reference"), "--target-lang", "de"]
    arguments += ["--against", str(generated)]
    text = output_of(evaluate_translation.main, arguments, monkeypatch, capsys)
    assert text.count("p = 1.0000") == 2 and "nan" not in text
    found = json.loads(output_of(evaluate_translation.main, [*arguments, "--json"], monkeypatch, capsys))
    assert [(item["metric"], item["p"]) for item in found["against"]] == [("BLEU", 1), ("chrF2", 1)]
    assert all(0 < item["value"] == item["other_value"] < 100 for item in found["against"])


def test_hypotheses_that_could_not_be_written_are_refused_before_the_work(tmp_path, monkeypatch, capsys):
    arguments = [str(tmp_path / "generate.txt"), "--reference", str(tmp_path / "reference"), "--target-lang", "de"]
    with pytest.raises(SystemExit) as error:
        output_of(
            evaluate_translation.main, [*arguments, "--hypotheses", str(tmp_path / "no/text")], monkeypatch, capsys
        )
    told = capsys.readouterr().err
    assert error.value.code == 2 and "no/text: " in told and "no is no directory: make it first" in told


def test_preset_without_training_flags_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit) as error:
        output_of(preset_flags.PresetFlags().main, ["lstm_lm_zaremba_medium"], monkeypatch, capsys)
    assert error.value.code == 2
    assert "lstm_lm_awd_ptb" in capsys.readouterr().err


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_script_has_help_and_strict_mode(script):
    result = subprocess.run(["bash", script, "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "usage" in result.stdout
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize(
    "command",
    [
        ["recipes/translation/multi30k.sh", "doc", "1", "no data", "save"],
        ["recipes/lm/train_preset.sh", "lstm_lm_doc_ptb", "no data", "save"],
        ["recipes/lm/fine_tune.sh", "lstm_lm_doc_ptb", "no.pt", "no data", "save"],
        ["generate_split.sh", "no data", str(ROOT / "README.md"), "test", "save"],
    ],
    ids=lambda command: command[0],
)
def test_missing_data_is_one_line(command, tmp_path):
    result = subprocess.run(["bash", ROOT / "scripts" / command[0], *command[1:]], cwd=tmp_path, capture_output=True)
    told = result.stderr.decode().splitlines()
    assert result.returncode == 2 and len(told) == 1 and "does not exist" in told[0] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", [path for path in SCRIPTS if "recipes" in path.parts])
def test_recipe_without_arguments_ends_with_its_usage(script):
    result = subprocess.run(["bash", script], capture_output=True, text=True)
    assert result.returncode == 2 and "usage" in result.stderr
