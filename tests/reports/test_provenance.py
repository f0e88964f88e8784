"""Which code a figure was measured with."""

import subprocess

import pytest

from fairseq_plugins.reports import provenance as module
from fairseq_plugins.reports.provenance import describe_code, describe_provenance, provenance, with_origin


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a copy of the module, and results."""
    package = tmp_path / "a checkout/package"
    package.mkdir(parents=True)
    (package / "provenance.py").write_text("")
    (package.parent / "results").mkdir()
    (package.parent / "results/table.md").write_text("1\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init"], ["add", "."], [*who, "commit", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=package.parent, check=True, capture_output=True)
    monkeypatch.setattr(module, "HERE", package / "provenance.py")
    return package.parent


def test_a_checkout_is_named_by_its_commit(checkout):
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, cwd=checkout, capture_output=True, text=True).stdout.strip()
    name = describe_code().removeprefix("commit ")
    assert commit.startswith(name) and len(name) >= 7
    (checkout / "results/table.md").write_text("2\n")
    (checkout / "not tracked").touch()
    assert describe_code() == f"commit {name}"
    (checkout / "package/provenance.py").write_text("changed = 1\n")
    assert describe_code() == f"commit {name}-dirty"


def test_an_installed_package_is_named_by_its_version_even_within_a_checkout(checkout, monkeypatch):
    installed = checkout / ".venv/site-packages/provenance.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(module, "HERE", installed)
    monkeypatch.setattr(module, "version", {"fairseq-plugins": "1.2.3"}.__getitem__)
    assert describe_code() == "fairseq-plugins 1.2.3"


def test_without_git_there_is_a_version(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout))
    assert describe_code().startswith("fairseq-plugins ")


def test_one_line_names_date_code_and_machine():
    found = provenance()
    assert describe_provenance() == f"{found['date']}, {found['code']}; {found['machine']}."
    assert "torch " in found["machine"] and "fairseq " in found["machine"]


def test_figures_come_after_their_origin():
    assert with_origin({"rank": 3}, command="python -m x") == {**provenance(), "command": "python -m x", "rank": 3}
