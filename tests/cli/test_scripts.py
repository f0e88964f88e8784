"""Scripts: help, strict mode, data that are missing, and the package that entries take."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from warm_process import PYTHON

ROOT = Path(__file__).resolve().parents[2]
SOURCED = ("lib.sh", "package.sh")
SCRIPTS = sorted(
    path for path in (*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("data-prep/*/*.sh")) if path.name not in SOURCED
)

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_script_has_help_and_strict_mode(script, tmp_path):
    """Called by a link in another folder, as it may be."""
    (tmp_path / "a link").symlink_to(script)
    # with CDPATH, cd may print where it went
    command, environment = ["bash", "a link", "--help"], {**os.environ, "CDPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and "usage" in result.stdout, result.stderr
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize(
    "command",
    [
        ["recipes/lm/fine_tune.sh", "lstm_lm_doc_ptb", "no.pt", "no data", "save"],
        ["generate_split.sh", "no data", "--path", str(ROOT / "README.md"), "--out", "save"],
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


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate_bleu.sh", "--help"],
        ["recipes/lm/reduced.sh", "--list"],
        ["recipes/lm/train_preset.sh", "--list"],
        ["recipes/lm/fine_tune.sh", "lstm_lm_doc_ptb", "a.pt", "data", "save"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("found", ["no python", "a python without fairseq"])
def test_an_environment_without_fairseq_is_one_line(found, command, tmp_path):
    for program in ("bash", "dirname", "basename", "readlink"):
        (tmp_path / program).symlink_to(shutil.which(program))
    if found == "a python without fairseq":
        (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
        (tmp_path / "python").chmod(0o755)
    line = ["bash", ROOT / "scripts" / command[0], *command[1:]]
    result = subprocess.run(line, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.startswith("error: no python with fairseq on PATH: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("script", sorted(ROOT.glob("scripts/*.py")), ids=lambda path: path.name)
def test_an_entry_is_the_command_of_its_name(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as error:
        runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out.split()
    assert error.value.code == 0 and shown[:4] == ["usage:", "python", "-m", f"fairseq_plugins.cli.{script.stem}"]
    assert len(script.read_text().splitlines()) <= 10


@pytest.mark.slow
def test_an_entry_takes_the_package_of_its_checkout(tmp_path):
    (tmp_path / "fairseq_plugins").mkdir()
    (tmp_path / "fairseq_plugins/__init__.py").write_text("raise RuntimeError('another copy')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(ROOT / "scripts/provenance.py"), "--help"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith("usage: "), result.stderr


@pytest.mark.slow
def test_a_script_takes_the_package_of_its_checkout(tmp_path, monkeypatch):
    """Not the one in the working directory."""
    monkeypatch.setenv("PATH", str(Path(PYTHON).parent), prepend=os.pathsep)
    (tmp_path / "fairseq_plugins").mkdir()
    (tmp_path / "fairseq_plugins/__init__.py").write_text("raise RuntimeError('another copy')")
    command = ["bash", ROOT / "scripts/recipes/lm/reduced.sh", "--list"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0 and "another copy" not in result.stderr, result.stderr
