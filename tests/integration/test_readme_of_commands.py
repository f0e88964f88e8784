"""What the README of the commands says."""

import shutil

import pytest
from readme_commands import run_sections

COMMANDS = "fairseq_plugins/cli/README.md"
SECTIONS = [
    (COMMANDS, "Evaluate language models"),
    (COMMANDS, "Look into language models"),
    (COMMANDS, "n-gram models"),
    (COMMANDS, "Compare runs"),
    (COMMANDS, "Speed and memory"),
]


@pytest.mark.slow
def test_commands(data, trained, tmp_path):
    shutil.copytree(data, tmp_path / "data-bin/ptb", ignore=shutil.ignore_patterns("digests.json"))
    shutil.copytree(trained, tmp_path / "checkpoints/doc")
    run_sections(SECTIONS, tmp_path)
    assert "perplexity" in (tmp_path / "results/my_comparison/table.md").read_text()
    assert (tmp_path / "bands.png").stat().st_size and (tmp_path / "masking.png").stat().st_size
    assert (tmp_path / "results/my_experts/sentence_2.png").stat().st_size
    assert list((tmp_path / "results/my_benchmarks").glob("output_layer_*.md"))
