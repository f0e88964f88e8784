"""scripts/setup.sh, with interpreters that only write down what they are asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/setup.sh"
PYTHON = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "{root}/calls"
case $* in
  --version) echo "Python {version}.1" ;;
  *version_info*) echo {version} ;;
  *"import pip"*) {imports_pip} ;;
  *"venv --clear"*)
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
        shutil.copy(SCRIPT, self.root / "scripts")
        for name in ("requirements.txt", "setup.py"):
            (self.root / name).touch()
        self.programs = folder / "bin"

    def write_python(self, path, *, version, imports_pip="true"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PYTHON.format(root=self.root, version=version, imports_pip=imports_pip))
        path.chmod(0o755)

    def set_up(self, *, version):
        """Exit status, standard error and what was asked, where ``python3`` is of that version."""
        (self.root / "calls").write_text("")
        self.write_python(self.root / "fresh", version=version)
        self.write_python(self.programs / "python3", version=version)
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        environment.pop("PYTHON", None)
        command = ["bash", self.root / "scripts/setup.sh"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return result.returncode, result.stderr, (self.root / "calls").read_text()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_it_makes_an_environment_once(checkout):
    status, error, calls = checkout.set_up(version="3.11")
    assert (status, error) == (0, "") and "venv --clear" in calls and "--requirement" in calls
    status, error, calls = checkout.set_up(version="3.11")
    assert (status, error) == (0, "") and "venv --clear" not in calls and "install" not in calls


def test_an_environment_whose_making_was_interrupted_is_made_again(checkout):
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv/pyvenv.cfg").write_text(f"command = python -m venv {checkout.root}/.venv\n")
    checkout.write_python(checkout.root / ".venv/bin/python", version="3.11", imports_pip="exit 1")
    status, error, calls = checkout.set_up(version="3.11")
    assert (status, error) == (0, "") and "venv --clear" in calls
    assert (checkout.root / ".venv/.installed").is_file()


def test_an_environment_of_another_interpreter_is_kept(checkout):
    assert checkout.set_up(version="3.12")[0] == 0
    status, error, calls = checkout.set_up(version="3.13")
    assert (status, error) == (0, "") and "venv --clear" not in calls and "install" not in calls


def test_an_interpreter_that_was_not_tested_is_refused(checkout):
    status, error, calls = checkout.set_up(version="3.13")
    assert status == 1 and "Python 3.11 or 3.12 is needed, python3 is 3.13" in error
    assert not (checkout.root / ".venv").exists()
