"""What the README of the models says."""

import shutil

import pytest
from readme_commands import run_sections

MODELS = "fairseq_plugins/models/README.md"
SECTIONS = [(MODELS, "Architectures"), (MODELS, "A gate on a trained model"), (MODELS, "Learning from noise")]


@pytest.mark.slow
def test_models(data, tmp_path):
    for name in ("ptb", "text8"):
        shutil.copytree(data, tmp_path / "data-bin" / name, ignore=shutil.ignore_patterns("digests.json"))
    run_sections(SECTIONS, tmp_path)
