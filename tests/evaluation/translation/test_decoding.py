"""Decodings that are done once; what they are known by."""

import pytest

from fairseq_plugins.evaluation.translation import decoding
from fairseq_plugins.evaluation.translation.decoding import Decoding, decoded_with


@pytest.fixture
def folder(tmp_path):
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


def test_what_it_was_decoded_with_is_told_without_model_and_data(folder, decoded):
    assert decoded_with(folder / "out") is None
    decoded("--lenpen", "0.6", "--cpu", beam=4, max_tokens=9)
    told = "--gen-subset test --beam 4 --remove-bpe=subword_nmt --lenpen 0.6"
    assert decoded_with(folder / "out") == told.split()
