"""What the README says of translation, and of training in several processes."""

import pytest
from readme_commands import put_multi30k, run_sections

SECTIONS = [
    ("README.md", "Translation"),
    ("README.md", "Several processes and machines"),
    ("fairseq_plugins/cli/README.md", "Attention, candidates and checkpoints of translators"),
]


@pytest.mark.slow
def test_translation_and_two_processes(tmp_path):
    put_multi30k(tmp_path)
    translated, _, rescored, _ = run_sections(SECTIONS, tmp_path)
    assert "tok:13a" in translated
    assert rescored.count("BLEU") == 2 and (tmp_path / "results/my_attention/sentence_1.png").stat().st_size
    assert (tmp_path / "checkpoints/by_bleu/checkpoint_best.pt").exists()
    assert (tmp_path / "checkpoints/two/checkpoint_best.pt").exists()
