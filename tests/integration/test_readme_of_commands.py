"""What the package's READMEs say of architectures and commands."""

import shutil

import pytest
from readme_commands import commands_of, run_commands

COMMANDS = "fairseq_plugins/cli/README.md"
SECTIONS = ["Evaluate language models", "Look into language models", "Compare runs", "Speed and memory"]


@pytest.mark.slow
def test_commands(data, trained, tmp_path):
    shutil.copytree(data, tmp_path / "data-bin/ptb")
    shutil.copytree(trained, tmp_path / "checkpoints/doc")
    commands = [block for section in SECTIONS for block in commands_of(COMMANDS, section)]
    run_commands([*commands, *commands_of("fairseq_plugins/models/README.md", "Architectures")], tmp_path)
    assert "perplexity" in (tmp_path / "results/my_comparison/table.md").read_text()
    assert (tmp_path / "bands.png").stat().st_size and (tmp_path / "masking.png").stat().st_size
    assert list((tmp_path / "results/my_benchmarks").glob("output_layer_*.md"))
