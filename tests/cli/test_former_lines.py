"""Lines as they were typed before all commands had one order: refused, with the line to type instead."""

import pytest

from fairseq_plugins.cli.__main__ import all_commands

COMMANDS = all_commands()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The data is there, and a text that was decoded before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "generate.txt").touch()


@pytest.mark.parametrize(
    "name, typed, to_type",
    [
        ("measure_rank", "a.pt data --positions 5", "data --path a.pt --positions 5"),
        ("evaluate_lm", "--path a.pt data", "data --path a.pt"),
        ("evaluate_lm", "data a.pt b.pt --json", "data --path a.pt b.pt --json"),
        (
            "compare_by_frequency",
            "one/best.pt two/best.pt data --json",
            "data --path one=one/best.pt two=two/best.pt --json",
        ),
        (
            "compare_by_frequency",
            "one/best.pt one/last.pt data",
            "data --path 'model 1=one/best.pt' 'model 2=one/last.pt'",
        ),
        (
            "mask_layers",
            "data A=a.pt B=b.pt --probabilities 0 0.5 --plot masking.png",
            "data --path A=a.pt B=b.pt --probabilities 0 0.5 --plot masking.png",
        ),
        ("measure_correlation", "data A=a.pt", "data --path A=a.pt"),
        ("compare_runs", "data A=save/a A=save/b --out out", "data --path A=save/a A=save/b --out out"),
        (
            "evaluate_translation",
            "generate.txt --reference test.de --target-lang de",
            "--input generate.txt --reference test.de --target-lang de",
        ),
        (
            "evaluate_translation",
            "--input generate.txt --reference test.de --hypotheses text",
            "--input generate.txt --reference test.de --write-hypotheses text",
        ),
        (
            "evaluate_translation",
            "data a.pt:b.pt test raw/test.de out --against other -- --beam 3",
            "data --path a.pt:b.pt --gen-subset test --reference raw/test.de --out out --against other -- --beam 3",
        ),
        ("evaluate_rouge", "--generated g.txt --reference r", "--input g.txt --reference r"),
        ("evaluate_rouge", "--hypotheses h --reference r", "--input-format text --input h --reference r"),
        (
            "evaluate_rouge",
            "data a.pt test raw/test.title out --max-bytes 75",
            "data --path a.pt --gen-subset test --reference raw/test.title --out out --max-bytes 75",
        ),
        ("benchmark_lm", "reduced data --rounds 2", "data --suite reduced --rounds 2"),
        ("benchmark_translation", "lstm data --systems doc", "data --suite lstm --systems doc"),
        ("headline_baselines", "a.article b.title --out o", "--articles a.article --titles b.title --out o"),
        ("generate_split", "data a.pt valid out", "data --path a.pt --gen-subset valid --out out"),
    ],
)
def test_another_order_is_refused_with_the_line_to_type(name, typed, to_type, capsys):
    with pytest.raises(SystemExit) as error:
        COMMANDS[name].main(typed.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and line.endswith(f"type: python -m fairseq_plugins.cli.{name} {to_type}")


@pytest.mark.parametrize(
    "name, typed, told",
    [
        ("evaluate_lm", "data", "arguments are required: --path"),
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
def test_what_is_no_former_line_is_told_as_it_is(name, typed, told, capsys):
    with pytest.raises(SystemExit) as error:
        COMMANDS[name].main(typed.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and told in line and "type:" not in line
