"""Decodings that are done once, and the output of fairseq-generate."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_plugins.console import ProgramFailed
from fairseq_plugins.evaluation import decoding
from fairseq_plugins.evaluation.decoding import Decoding, check_decoded_by, decoding_record, read_generated
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


GENERATED = """S-1\tb
T-1\tein Haus .
H-1\t-0.5\tein\x0cHaus .
D-1\t-0.5\tein Haus .
P-1\t-0.1 -0.2
H-1\t-0.9\tdas Haus .
S-0\ta
T-0\tja\u2028ja\x85!
H-0\t-0.2\t
2026-11-21 | INFO | fairseq_cli.generate | Generate test with beam=5: BLEU4 = 1
"""


def write(path, text):
    path.write_bytes(text.encode())
    return path


def test_the_best_hypothesis_of_each_sentence_is_read_with_odd_separators(tmp_path):
    hypotheses, references = read_generated(write(tmp_path / "generate.txt", GENERATED))
    assert hypotheses == ["", "ein\x0cHaus ."] and references == ["ja\u2028ja\x85!", "ein Haus ."]


def test_files_of_one_decoding_are_read_as_one_and_two_decodings_are_refused(tmp_path):
    first = write(tmp_path / "first.txt", "T-0\ta\nH-0\t-1\ta\nH-0\t-2\tb\n")
    second = write(tmp_path / "second.txt", "T-1\tc\nH-1\t-1\td\n")
    assert read_generated(first, second)[0] == ["a", "d"]
    for files in ((first, second, first), (first, first)):
        with pytest.raises(ValueError, match="first.txt, line 2: sentence 0 is in an earlier file, too: give what one"):
            read_generated(*files)


WHOLE = "T-0\ta\nH-0\t-1\ta\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "holds no hypothesis"),
        ("T-0\ta\n", "holds no hypothesis"),
        (f"{WHOLE}H-2\t-1\tc\nT-2\tc\n", "sentence 1 has no hypothesis or no reference"),
        (f"{WHOLE}T-1\tc\n", "sentence 1 has no hypothesis"),
        (f"{WHOLE}H-999999999999\t-1\tb\n", "sentence 1 has no hypothesis or no reference"),
        (f"{WHOLE}H-²\t-1\ta", "generate.txt, line 3: '²' is not the number of a sentence"),
        (f"{WHOLE}T-1x\ta", "generate.txt, line 3: '1x' is not the number"),
        (f"{WHOLE}H-{'9' * 5000}\t-1\ta", "generate.txt, line 3: '999.* is not the number"),
        (f"{WHOLE}H-1\t-0.5", "generate.txt, line 3: H-1 is cut short"),
        (f"{WHOLE}T-1", "generate.txt, line 3: T-1 is cut short"),
    ],
)
def test_output_that_is_cut_short_or_of_another_form_is_refused(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_generated(write(tmp_path / "generate.txt", text))
