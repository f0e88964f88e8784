"""What commands that compare models refuse before they read one, and what they are asked for."""

import re

import pytest

from fairseq_plugins.cli import compare_runs
from fairseq_plugins.cli.compare_by_frequency import CompareByFrequency
from fairseq_plugins.cli.compare_runs import CompareRuns
from fairseq_plugins.metrics.rouge import RougeSettings


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--tokenizer", "unicode"], "--stemming, --tokenizer, --max-bytes and --max-words go with --metric rouge"),
        (["--metric", "bleu", "--max-words", "9"], "--stemming, --tokenizer, .* go with --metric rouge"),
        (["--metric", "rouge", "--max-words", "-9"], "a limit of -9 words: give 0 for no limit, or more"),
        (["--gen-subset", "valid"], "--reference, --split and --text go with --metric bleu or rouge"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, told, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        CompareRuns().main([tmp_path, "--path", "A=nowhere", "--out", tmp_path / "out", *flags])
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2
    assert re.search(f"error: {told}$", line), line


def test_settings_of_rouge_are_those_asked_for(tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    (tmp_path / "valid.de-en.en.idx").touch()

    def text_metric(name, reference, *, data, split, language, rouge):
        assert (name, rouge) == ("rouge", RougeSettings(tokenizer="unicode", max_words=9))
        assert (str(reference), data, split, language) == ("x", tmp_path, "valid", "en")
        raise Asked

    monkeypatch.setattr(compare_runs, "text_metric", text_metric)
    flags = ["--metric", "rouge", "--tokenizer", "unicode", "--max-words", "9", "--reference", "x"]
    flags += ["--split", "valid"]
    with pytest.raises(Asked):
        CompareRuns().main([tmp_path, "--path", "A=nowhere", "--out", tmp_path / "out", *flags])


def test_models_of_one_name_are_not_compared_by_frequency(tmp_path, capsys):
    with pytest.raises(SystemExit):
        CompareByFrequency().main([tmp_path, "--path", "A=a.pt", "A=b.pt"])
    assert "error: give each NAME once" in capsys.readouterr().err
