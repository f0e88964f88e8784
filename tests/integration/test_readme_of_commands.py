"""What the package's READMEs say of architectures and commands."""

import shutil

import pytest
from readme_commands import run_sections

COMMANDS = "fairseq_plugins/cli/README.md"
COMMAND_SECTIONS = [
    (COMMANDS, "Evaluate language models"),
    (COMMANDS, "Look into language models"),
    (COMMANDS, "Compare runs"),
    (COMMANDS, "Speed and memory"),
]
MODELS = "fairseq_plugins/models/README.md"
MODEL_SECTIONS = [(MODELS, "Architectures"), (MODELS, "A gate on a trained model")]
SECTIONS = [*COMMAND_SECTIONS, *MODEL_SECTIONS]


@pytest.mark.slow
def test_commands(data, trained, tmp_path):
    shutil.copytree(data, tmp_path / "data-bin/ptb")
    shutil.copytree(trained, tmp_path / "checkpoints/doc")
    run_sections(COMMAND_SECTIONS, tmp_path)
    assert "perplexity" in (tmp_path / "results/my_comparison/table.md").read_text()
    assert (tmp_path / "bands.png").stat().st_size and (tmp_path / "masking.png").stat().st_size
    assert list((tmp_path / "results/my_benchmarks").glob("output_layer_*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("section", MODEL_SECTIONS)
def test_models(section, data, tmp_path):
    shutil.copytree(data, tmp_path / "data-bin/ptb")
    run_sections([section], tmp_path)
