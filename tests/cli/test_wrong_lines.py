"""Command lines with arguments missing, unknown or in a wrong place: one line with the remedy and exit status 2."""

import pytest

from fairseq_plugins.cli.__main__ import all_commands

COMMANDS = all_commands()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The data is there, and a text that was decoded before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dict.txt").touch()
    (tmp_path / "generate.txt").touch()


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
