"""What compare_runs refuses before it reads a run."""

import re

import pytest

from fairseq_plugins.cli.compare_runs import CompareRuns


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
