"""The code and the machine that figures come from."""

import subprocess

import pytest

import fairseq_plugins
from fairseq_plugins.reports import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a copy of the module, and results."""
    package = tmp_path / "a checkout/package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("")
    (package.parent / "results").mkdir()
    (package.parent / "results/table.md").write_text("1\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init"], ["add", "."], [*who, "commit", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=package.parent, check=True, capture_output=True)
    monkeypatch.setattr(provenance, "HERE", package / "module.py")
    return package.parent


def test_a_checkout_is_named_by_its_commit(checkout):
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, cwd=checkout, capture_output=True, text=True).stdout.strip()
    name = provenance.describe_code().removeprefix("commit ")
    assert commit.startswith(name) and len(name) >= 7
    (checkout / "results/table.md").write_text("2\n")
    (checkout / "not tracked").touch()
    assert provenance.describe_code() == f"commit {name}"
    (checkout / "package/module.py").write_text("changed = 1\n")
    assert provenance.describe_code() == f"commit {name}-dirty"


def test_an_installed_package_is_named_by_its_version_even_within_a_checkout(checkout, monkeypatch):
    installed = checkout / ".venv/site-packages/module.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(provenance, "HERE", installed)
    monkeypatch.setattr(fairseq_plugins, "__version__", "1.2.3")
    assert provenance.describe_code() == "fairseq-plugins 1.2.3"


def test_without_git_there_is_a_version(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout))
    assert provenance.describe_code().startswith("fairseq-plugins ")


def test_the_origin_names_the_machine_with_versions_and_the_command():
    origin = provenance.origin("python -m x")
    assert list(origin) == ["date", "code", "machine", "command"] and origin["command"] == "python -m x"
    assert "torch " in origin["machine"] and "fairseq " in origin["machine"]
