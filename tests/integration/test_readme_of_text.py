"""What the READMEs say of text that is scored and written, and of Python."""

import shutil

import pytest
from commands import ROOT
from readme_commands import run_sections

SECTIONS = [("README.md", "From Python"), ("fairseq_plugins/cli/README.md", "Score and write text")]
FIXTURES = ROOT / "tests/fixtures/older_checkpoints"


@pytest.mark.slow
def test_text(tmp_path):
    for model, data, folder, corpus in (
        ("lstm_lm_doc.pt", "lm", "doc", "ptb"),
        ("lstm_encdec_doc.pt", "translation", "multi30k_doc", "m30k-joined.en-de"),
    ):
        (tmp_path / "checkpoints" / folder).mkdir(parents=True)
        shutil.copy(FIXTURES / model, tmp_path / "checkpoints" / folder / "checkpoint_best.pt")
        shutil.copytree(
            FIXTURES / "data" / data, tmp_path / "data-bin" / corpus, ignore=shutil.ignore_patterns("digests.json")
        )
    (tmp_path / "data-bin/ptb/text.json").write_text('{"tokenizer": "blanks", "case": "kept"}')
    (tmp_path / "data-bin/m30k-joined.en-de/bpe.codes").write_text("#version: 0.2\nx a</w>\n")
    printed, by_commands = run_sections(SECTIONS, tmp_path)
    assert "log-probability -" in printed and "perplexity " in printed and "torch.Size([" in printed
    assert by_commands.count("the market") >= 5 and (tmp_path / "surprisal.png").stat().st_size
