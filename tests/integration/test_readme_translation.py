"""What the READMEs say of translation, of what translators are used for, and of training in several processes."""

import pytest
from readme_commands import put_multi30k, run_sections

SECTIONS = [
    ("README.md", "Translation"),
    ("fairseq_plugins/cli/README.md", "Attention, candidates and checkpoints of translators"),
    ("README.md", "Several processes and machines"),
]


@pytest.mark.slow
def test_translation_and_two_processes(tmp_path):
    put_multi30k(tmp_path)
    translated, rescored, _, _ = run_sections(SECTIONS, tmp_path)
    assert "tok:13a" in translated
    assert rescored.count("BLEU") == 2 and (tmp_path / "results/my_attention/sentence_1.png").stat().st_size
    assert (tmp_path / "checkpoints/by_bleu/checkpoint_best.pt").exists()
    assert (tmp_path / "checkpoints/two/checkpoint_best.pt").exists()
