"""What the READMEs say of headlines."""

import pytest
from readme_commands import commands_of, put_agnews, run_commands


@pytest.mark.slow
def test_headlines(tmp_path):
    put_agnews(tmp_path)
    commands = commands_of("README.md", "Headlines")
    commands += commands_of("fairseq_plugins/cli/README.md", "Translations and headlines")
    outputs = run_commands(commands, tmp_path)
    assert "rouge-score" in outputs[0]
    assert "a random headline" in (tmp_path / "results/my_headlines/table.md").read_text()
