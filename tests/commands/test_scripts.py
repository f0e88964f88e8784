"""Scripts: help, strict mode, missing data, the package that entries take, and the setup of an environment."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from warm_process import PYTHON

PREPARATIONS = sorted(ROOT.glob("data-prep/*/prepare.sh"))
SCRIPTS = [*sorted(ROOT.glob("scripts/**/*.sh")), PREPARATIONS[0]]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_script_has_help_and_strict_mode(script, tmp_path):
    """Called by a link in another folder, as it may be."""
    (tmp_path / "a link").symlink_to(script)
    # with CDPATH, cd may print where it went
    command, environment = ["bash", "a link", "--help"], {**os.environ, "CDPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and "usage" in result.stdout, result.stderr
    assert "set -euo pipefail" in script.read_text()


def test_scripts_of_all_corpora_are_the_same_but_for_a_comment():
    bodies = {re.sub(r"^# .*\n", "", script.read_text(), flags=re.M) for script in PREPARATIONS}
    assert len(bodies) == 1 and len(PREPARATIONS) > 10


@pytest.mark.slow
def test_a_script_takes_the_package_of_its_checkout_and_all_arguments(tmp_path, monkeypatch):
    """Not the package in the working directory."""
    bleu, rouge = ((ROOT / f"scripts/evaluate_{score}.sh").read_text().splitlines()[2:] for score in ("bleu", "rouge"))
    assert rouge == [line.replace("evaluate bleu", "evaluate rouge") for line in bleu]
    monkeypatch.setenv("PATH", str(Path(PYTHON).parent), prepend=os.pathsep)
    (tmp_path / "fairseq_plugins").mkdir()
    (tmp_path / "fairseq_plugins/__init__.py").write_text("raise RuntimeError('another copy')")
    command = ["bash", ROOT / "scripts/evaluate_rouge.sh", "no data", "--path", ROOT / "README.md", "--out", "save"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and "argument DATA: no data does not exist" in line
    assert not (tmp_path / "save").exists()


def test_a_script_becomes_its_command(tmp_path, monkeypatch):
    """So a signal to it reaches the command."""
    (tmp_path / "python").write_text('#!/bin/bash\necho $$ "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = ["bash", ROOT / "scripts/evaluate_bleu.sh", "DATA"]
    process = subprocess.Popen(script, stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0] == f"{process.pid} -m fairseq_plugins evaluate bleu DATA\n"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_missing_python_or_one_without_fairseq_is_told_with_the_remedy(is_there, tmp_path):
    if is_there:
        (tmp_path / "python").write_text(f'#!{shutil.which("bash")}\nexec "{PYTHON}" -I -S "$@"\n')
        (tmp_path / "python").chmod(0o755)
    script = ROOT / "scripts/evaluate_bleu.sh"
    command = [shutil.which("bash"), script, "data"]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    remedy = "no python with fairseq here: source .venv/bin/activate, after bash scripts/setup.sh"
    assert (result.returncode, result.stderr) == (2, f"{script.name}: {remedy}\n")


# scripts/setup.sh, with interpreters that only write down what they are asked

INTERPRETER = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "{root}/calls"
case $* in
  --version) echo "Python {version}.1" ;;
  *version_info*) echo {version} ;;
  *base_executable*) echo "$0" ;;
  *"import pip"*) {imports_pip} ;;
  *"-m venv"*)
    mkdir -p "{root}/.venv/bin"
    echo "command = python -m venv {root}/.venv" > "{root}/.venv/pyvenv.cfg"
    cp "{root}/fresh" "{root}/.venv/bin/python"
    ;;
esac
"""


class Checkout:
    """Its ``scripts/setup.sh``, in a path with a space."""

    def __init__(self, folder):
        self.root = folder / "my checkout"
        (self.root / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/setup.sh", self.root / "scripts")
        for name in ("requirements.txt", "setup.py"):
            (self.root / name).touch()
        self.programs = folder / "bin"

    def write_python(self, path, *, version, imports_pip="true"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(INTERPRETER.format(root=self.root, version=version, imports_pip=imports_pip))
        path.chmod(0o755)

    def write_environment(self, files, *, imports_pip):
        """``.venv`` with these files, and with an interpreter where ``imports_pip`` is given."""
        (self.root / ".venv").mkdir()
        for name, text in files.items():
            (self.root / ".venv" / name).write_text(text.format(root=self.root))
        if imports_pip:
            self.write_python(self.root / ".venv/bin/python", version="3.11", imports_pip=imports_pip)

    def set_up(self, *, version, script="scripts/setup.sh"):
        """Exit status, standard error and what was asked, where ``python3`` is of that version."""
        (self.root / "calls").write_text("")
        self.write_python(self.root / "fresh", version=version)
        self.write_python(self.programs / "python3", version=version)
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        environment.pop("PYTHON", None)
        command = ["bash", self.root / script]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return result.returncode, result.stderr, (self.root / "calls").read_text()


MOVED = "command = python -m venv /elsewhere/.venv\n"


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_setup_makes_an_environment_once(checkout):
    status, error, calls = checkout.set_up(version="3.11")
    assert (status, error) == (0, "") and "-m venv" in calls and "--requirement" in calls
    status, error, calls = checkout.set_up(version="3.11")
    assert (status, error) == (0, "") and "-m venv" not in calls and "install" not in calls


@pytest.mark.parametrize(
    "left, imports_pip",
    [
        ({"pyvenv.cfg": "command = python -m venv {root}/.venv\n", "install.log": "", "former": ""}, "exit 1"),
        ({"pyvenv.cfg": "home =", "install.log": ""}, "exit 1"),
        ({"install.log": ""}, "exit 1"),
        ({}, None),
        ({"pyvenv.cfg": MOVED, ".installed": "Python 3.11", "former": ""}, "true"),
    ],
    ids=["without pip", "in the first file", "before the first file", "empty", "moved"],
)
def test_an_environment_whose_making_was_interrupted_or_that_was_moved_is_made_again(left, imports_pip, checkout):
    checkout.write_environment(left, imports_pip=imports_pip)
    status, error, calls = checkout.set_up(version="3.11")
    assert (status, error) == (0, "") and "-m venv" in calls
    assert (checkout.root / ".venv/.installed").is_file() and not (checkout.root / ".venv/former").exists()


@pytest.mark.parametrize("cfg", ["home = /usr/bin\nuv = 0.5.1\n", MOVED, None])
def test_an_environment_of_somebody_else_is_left_alone(cfg, checkout):
    checkout.write_environment({"pyvenv.cfg": cfg} if cfg else {"mine": ""}, imports_pip="true")
    status, error, calls = checkout.set_up(version="3.11")
    remedy = "was not made by this script: move it away or delete it"
    assert status == 2 and error == f"setup.sh: {checkout.root}/.venv {remedy}\n" and "install" not in calls
    assert (checkout.root / ".venv" / ("pyvenv.cfg" if cfg else "mine")).exists()


def test_an_environment_that_is_known_by_a_link_is_kept(checkout, tmp_path):
    """So is the script."""
    (tmp_path / "link").symlink_to(checkout.root)
    (checkout.root / "set up").symlink_to("scripts/setup.sh")
    cfg = f"command = python -m venv {tmp_path}/link/.venv\n"
    checkout.write_environment({"pyvenv.cfg": cfg, "mine": ""}, imports_pip="true")
    status, error, calls = checkout.set_up(version="3.11", script="set up")
    assert (status, error) == (0, "") and "-m venv" not in calls and (checkout.root / ".venv/mine").exists()


def test_an_environment_of_another_interpreter_is_kept(checkout):
    assert checkout.set_up(version="3.12")[0] == 0
    status, error, calls = checkout.set_up(version="3.13")
    assert (status, error) == (0, "") and "-m venv" not in calls and "install" not in calls


def test_an_interpreter_that_was_not_tested_is_refused(checkout):
    status, error, calls = checkout.set_up(version="3.13")
    assert status == 2 and "Python 3.11 or 3.12 is needed, python3 is 3.13" in error
    assert not (checkout.root / ".venv").exists()


@pytest.mark.usefixtures("warm")
def test_the_reference_pages_are_what_the_code_gives():
    done = subprocess.run([sys.executable, ROOT / "scripts/reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
