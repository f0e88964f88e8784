"""Decodings that are done once."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_plugins.console import ProgramFailed
from fairseq_plugins.evaluation import decoding
from fairseq_plugins.evaluation.decoding import Decoding, check_decoded_by, decoding_record
from fairseq_plugins.options import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "translation_languages", lambda models, data, split: ("en", "de"))
    for name in ("model.pt", "lm.pt", "data/dict.de.txt", "data/test.en-de.de.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.fixture
def decoded(folder, monkeypatch):
    """``decoded(*flags, **options)``: how many decodings there were after this one."""
    runs = []

    def run_fairseq(program, arguments, *, log, output):
        runs.append(arguments)
        output.write_text("H-0\t-1\ta\n")

    monkeypatch.setattr(decoding, "run_fairseq", run_fairseq)

    def decode(*flags, **options):
        models = [str(folder / "model.pt")]
        Decoding(data=folder / "data", models=models, split="test", out=folder / "out", flags=flags, **options).run()
        return len(runs)

    return decode


def test_scores_of_an_earlier_decoding_and_remains_of_a_killed_one_go(folder, decoded):
    assert decoded() == 1
    left = [folder / "out" / name for name in ("scores.txt", "rouge.txt", "hypotheses.txt", ".generate.123.txt")]
    for path in left:
        path.touch()
    assert decoded() == 1 and all(path.exists() for path in left)
    assert decoded(beam=2) == 2 and not any(path.exists() for path in left)


@pytest.mark.parametrize("flag", [["--lm-path", "lm.pt"], ["--lm-path=lm.pt"]])
def test_a_decoding_is_done_again_where_anything_that_it_reads_has_changed(flag, folder, decoded, monkeypatch):
    monkeypatch.chdir(folder)
    assert decoded(*flag) == decoded(*flag) == 1
    for count, name in enumerate(["model.pt", "lm.pt", "data/dict.de.txt", "data/test.en-de.de.bin"], start=2):
        (folder / name).write_text("changed")
        assert decoded(*flag) == decoded(*flag) == count
    assert decoded(*flag, beam=2) == 6


def test_a_decoding_is_done_again_where_the_code_of_its_parts_has_changed(folder, decoded, monkeypatch):
    (folder / "mine/cells").mkdir(parents=True)
    parts = [folder / name for name in ("mine/__init__.py", "mine/cells/__init__.py")]
    monkeypatch.setattr(decoding, "user_dir", lambda: str(folder / "mine"))
    for count, path in enumerate(parts, start=1):
        path.write_text("changed")
        assert decoded() == decoded() == count
    monkeypatch.setattr(decoding.fairseq_plugins, "__version__", "another")
    assert decoded() == decoded() == 3


def test_a_decoding_stays_wherever_the_same_files_are_and_however_they_are_named(folder, decoded, monkeypatch):
    assert decoded("--lenpen", "2") == 1
    monkeypatch.setattr(decoding, "user_dir", lambda: "another")
    moved = folder / "moved"
    moved.mkdir()
    for name in ("model.pt", "data", "out"):
        (folder / name).rename(moved / name)
    monkeypatch.chdir(moved)
    monkeypatch.setattr(decoding, "run_fairseq", None)
    again = Decoding(data=Path("data"), models=["./model.pt"], split="test", out=Path("out"), flags=["--lenpen", "2"])
    again.run()
    with pytest.raises(TypeError, match="NoneType"):
        replace(again, flags=["--lenpen", "1"]).run()


def test_a_folder_with_another_record_is_refused_before_work(folder, decoded, monkeypatch):
    """A training keeps its record under the same name."""
    assert decoded() == 1
    whole = (folder / "out/run.json").read_text()
    for kept in ("", "[]", "[" * 100_000, '{"command": "fairseq-train", "status": "begun"}'):
        (folder / "out/run.json").write_text(kept)
        with pytest.raises(UserError, match="out/run.json is no record of a decoding: give another folder, or remove"):
            decoded()
    (folder / "out/run.json").write_text(whole)
    assert decoded() == 1


def test_the_record_tells_what_was_decoded_with_what(folder, decoded):
    assert decoding_record(folder / "out") is None
    (folder / "data/test.old").mkdir()
    decoded("--lenpen", "0.6", "--cpu", beam=4, max_tokens=9)
    flags = "--gen-subset test --beam 4 --remove-bpe=subword_nmt --lenpen 0.6"
    record = decoding_record(folder / "out")
    assert record == json.loads((folder / "out/run.json").read_text())
    assert record["flags"] == [*flags.split(), "--cpu"] and record["languages"] == ["en", "de"]
    model = folder / "model.pt"
    assert record["models"] == {str(model): hashlib.sha256(b"model.pt").hexdigest()}
    assert list(record["data"]) == ["dict.de.txt", "test.en-de.de.bin"] and record["version"]
    assert record["command"].startswith("fairseq-generate ") and record["command"].endswith(f"9 {flags} --cpu")
    check_decoded_by(model, folder / "out")
    with pytest.raises(UserError, match="was not decoded by .*data/dict.de.txt alone"):
        check_decoded_by(folder / "data/dict.de.txt", folder / "out")


def test_a_decoding_that_fails_leaves_nothing_that_counts(folder, decoded, monkeypatch):
    assert decoded() == 1

    def fail(*arguments, log, output):
        output.write_text("H-0")
        raise KeyboardInterrupt

    def fail_to_rename(path, target):
        if Path(target).name == "generate.txt":
            raise OSError("no")
        os.replace(path, target)

    repeats = decoding.run_fairseq
    monkeypatch.setattr(decoding, "run_fairseq", fail)
    with pytest.raises(KeyboardInterrupt):
        decoded(beam=2)
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["generate.txt", "run.json"]
    assert decoded() == 1  # the former one stays
    monkeypatch.setattr(decoding, "run_fairseq", repeats)
    monkeypatch.setattr(Path, "replace", fail_to_rename)
    with pytest.raises(OSError):
        decoded(beam=2)
    monkeypatch.undo()
    assert not (folder / "out/generate.txt").exists()


@pytest.mark.parametrize(
    "told, error",
    [
        ("AssertionError: --sampling requires --nbest to be equal to --beam", UserError),
        ("AssertionError: min_len cannot be larger than max_len, please adjust these!", UserError),
        ("ValueError: DiverseBeamSearch requires --beam to be divisible by the number of groups", UserError),
        ("AssertionError: --beam\nAssertionError", ProgramFailed),
        ("ValueError: a fault", ProgramFailed),
    ],
)
def test_a_flag_that_fairseq_refuses_is_told_in_a_line(told, error, decoded, monkeypatch):
    def fail(*arguments, log, output):
        raise ProgramFailed(f'  File "generate.py", line 37, in main\n{told}')

    monkeypatch.setattr(decoding, "run_fairseq", fail)
    with pytest.raises(error) as refused:
        decoded()
    if error is UserError:
        assert str(refused.value).startswith(f"flags of fairseq-generate: {told.partition(': ')[2]} (log: ")
