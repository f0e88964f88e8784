"""The allocator of trainings: set where nothing else is, and less memory with it."""

import platform
import subprocess
import sys

import pytest

from fairseq_plugins.programs.allocator import TUNABLES, VARIABLES, training_environment
from fairseq_plugins.programs.host_program import run_host
from fairseq_plugins.programs.logged_process import run_logged


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))


def test_a_training_has_everything_else_of_this_process(monkeypatch):
    monkeypatch.setenv("OTHER", "kept")
    environment = training_environment()
    assert environment["GLIBC_TUNABLES"] == TUNABLES and environment["OTHER"] == "kept"


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_has_set_stays(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    environment = training_environment()
    assert environment[name] == "1" and environment.get("GLIBC_TUNABLES") in (None, "1")


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert "GLIBC_TUNABLES" not in training_environment()


@pytest.mark.parametrize("program, expected", [("train", TUNABLES), ("generate", "None")])
def test_only_trainings_have_it(program, expected, tmp_path, monkeypatch):
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / f"{program}.py").write_text("import os; print(os.environ.get('GLIBC_TUNABLES'))")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    run_host(program, [], log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == f"{expected}\n"


@pytest.mark.parametrize("environment, expected", [({"CHOSEN": "yes"}, "yes"), (None, "None")])
def test_a_logged_process_has_the_environment_given(environment, expected, tmp_path):
    command = [sys.executable, "-c", "import os; print(os.environ.get('CHOSEN'))"]
    assert run_logged(command, log=tmp_path / "log", environment=environment) == 0
    assert (tmp_path / "log").read_text() == f"{expected}\n"


@pytest.mark.parametrize("tunable", TUNABLES.split(":"))
def test_glibc_takes_the_value(tunable):
    """A name that glibc does not have is ignored without a word, so its own list is asked."""
    loader = next((part for part in _mapped_files() if "/ld-linux" in part), None)
    if loader is None:
        pytest.skip("the C library is not glibc")
    listed = subprocess.run(
        [loader, "--list-tunables"], env={"GLIBC_TUNABLES": tunable}, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("glibc before 2.33 does not list its tunables")
    name, value = tunable.split("=")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{name}:")]
    assert int(line.split()[1], 16) == int(value)


def _mapped_files():
    try:
        with open("/proc/self/maps") as maps:
            return {line.split()[-1] for line in maps}
    except FileNotFoundError:
        return set()
