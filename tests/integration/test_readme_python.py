"""What the README says of Python."""

import shutil

import pytest
from commands import ROOT
from readme_commands import run_sections

SECTIONS = [("README.md", "From Python")]
FIXTURES = ROOT / "tests/fixtures/older_checkpoints"


@pytest.mark.slow
def test_python(tmp_path):
    for model, data, folder, corpus in (
        ("lstm_lm_doc.pt", "lm", "doc", "ptb"),
        ("lstm_encdec_doc.pt", "translation", "multi30k_doc", "multi30k.en-de"),
    ):
        (tmp_path / "checkpoints" / folder).mkdir(parents=True)
        shutil.copy(FIXTURES / model, tmp_path / "checkpoints" / folder / "checkpoint_best.pt")
        shutil.copytree(FIXTURES / "data" / data, tmp_path / "data-bin" / corpus)
    (tmp_path / "data-bin/ptb/text.json").write_text('{"tokenizer": "blanks", "case": "kept"}')
    (tmp_path / "data-bin/multi30k.en-de/bpe.codes").write_text("#version: 0.2\nx a</w>\n")
    (printed,) = run_sections(SECTIONS, tmp_path)
    assert "log-probability -" in printed and "perplexity " in printed and "torch.Size([" in printed
