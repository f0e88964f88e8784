"""What the README of the commands says of attention, candidates and checkpoints of translators."""

import pytest
from readme_commands import put_multi30k, run_sections

SECTIONS = [("fairseq_plugins/cli/README.md", "Attention, candidates and checkpoints of translators")]


@pytest.mark.slow
def test_translators(tmp_path):
    put_multi30k(tmp_path)
    _, rescored, _ = run_sections([("README.md", "Translation"), *SECTIONS], tmp_path)
    assert rescored.count("BLEU") == 2 and (tmp_path / "results/my_attention/sentence_1.png").stat().st_size
    assert (tmp_path / "checkpoints/by_bleu/checkpoint_best.pt").exists()
