"""Decodings that are done once; what they are known by."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_plugins.evaluation.translation import decoding
from fairseq_plugins.evaluation.translation.decoding import Decoding, decoded_with


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

    def run_host(program, arguments, *, log, output):
        runs.append(arguments)
        output.write_text("H-0\t-1\ta\n")

    monkeypatch.setattr(decoding, "run_host", run_host)

    def decode(*flags, **options):
        models = [str(folder / "model.pt")]
        Decoding(data=folder / "data", models=models, split="test", out=folder / "out", flags=flags, **options).run()
        return len(runs)

    return decode


@pytest.mark.parametrize("flag", [["--lm-path", "lm.pt"], ["--lm-path=lm.pt"]])
def test_it_is_done_again_where_anything_that_it_reads_has_changed(flag, folder, decoded, monkeypatch):
    monkeypatch.chdir(folder)
    assert decoded(*flag) == decoded(*flag) == 1
    for count, name in enumerate(["model.pt", "lm.pt", "data/dict.de.txt", "data/test.en-de.de.bin"], start=2):
        (folder / name).write_text("changed")
        assert decoded(*flag) == decoded(*flag) == count
    assert decoded(*flag, beam=2) == 6


def test_it_stays_wherever_the_same_files_are_and_however_they_are_named(folder, decoded, monkeypatch):
    assert decoded("--lenpen", "2") == 1
    monkeypatch.setattr(decoding, "USER_DIR", folder / "another")
    moved = folder / "moved"
    moved.mkdir()
    for name in ("model.pt", "data", "out"):
        (folder / name).rename(moved / name)
    monkeypatch.chdir(moved)
    monkeypatch.setattr(decoding, "run_host", None)
    again = Decoding(data=Path("data"), models=["./model.pt"], split="test", out=Path("out"), flags=["--lenpen", "2"])
    again.run()
    with pytest.raises(TypeError, match="NoneType"):
        replace(again, flags=["--lenpen", "1"]).run()


@pytest.mark.parametrize("kept", ["", "no sums", "0 1  model.pt\n'no end\n", "\u2028\n"])
def test_a_damaged_record_of_what_was_asked_is_none(kept, folder, decoded):
    assert decoded() == 1
    (folder / "out/asked.txt").write_text(kept)
    assert decoded() == decoded() == 2


def test_it_stays_with_a_name_that_ends_a_line_elsewhere(folder, decoded, monkeypatch):
    (folder / "data").rename(folder / "da\u2028ta")
    place = Decoding(data=folder / "da\u2028ta", models=[str(folder / "model.pt")], split="test", out=folder / "out")
    place.run()
    monkeypatch.setattr(decoding, "run_host", None)
    place.run()


def test_what_it_was_decoded_with_is_told_without_model_and_data(folder, decoded):
    assert decoded_with(folder / "out") is None
    decoded("--lenpen", "0.6", "--cpu", beam=4, max_tokens=9)
    told = "--gen-subset test --beam 4 --remove-bpe=subword_nmt --lenpen 0.6"
    assert decoded_with(folder / "out") == told.split()
