"""What the README says of translation, and of training in several processes."""

import pytest
from readme_commands import put_multi30k, run_sections

SECTIONS = [("README.md", "Translation"), ("README.md", "Several processes and machines")]


@pytest.mark.slow
def test_translation_and_two_processes(tmp_path):
    put_multi30k(tmp_path)
    translated, _ = run_sections(SECTIONS, tmp_path)
    assert "tok:13a" in translated
    assert (tmp_path / "checkpoints/two/checkpoint_best.pt").exists()
