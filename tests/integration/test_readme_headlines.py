"""What the READMEs say of headlines."""

import pytest
from readme_commands import put_agnews, run_sections

SECTIONS = [("README.md", "Headlines"), ("fairseq_plugins/cli/README.md", "Translations and headlines")]


@pytest.mark.slow
def test_headlines(tmp_path):
    put_agnews(tmp_path)
    outputs = run_sections(SECTIONS, tmp_path)
    assert "rouge-score" in outputs[0]
    assert "a random headline" in (tmp_path / "results/my_headlines/table.md").read_text()
