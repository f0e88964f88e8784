"""Every section of the READMEs with commands is run by some test; here those on language models."""

import importlib
from pathlib import Path

from binarised_data import copy_data
from generated_corpora import write_stories
from paths import PLUGINS, ROOT
from readme_commands import documented_sections, run_sections

LANGUAGE_MODELS = [("README.md", "Language models"), ("README.md", "Without a recipe")]
LANGUAGE_MODELS += [("fairseq_plugins/commands/README.md", "Train from a YAML file")]
MODELS = [
    ("fairseq_plugins/models/README.md", section)
    for section in ("Architectures", "A gate on a trained model", "Learning from noise")
]
SECTIONS = [*LANGUAGE_MODELS, *MODELS]
RUN_BY_PEOPLE = [
    ("README.md", "Quick start"),
    ("CONTRIBUTING.md", "Set up and test"),
    ("fairseq_plugins/demo_corpus/README.md", "An excerpt of Tatoeba, German and English"),
]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "scripts/README.md", "tests/README.md"]
DOCUMENTS += [str(path.relative_to(ROOT)) for path in PLUGINS.rglob("*.md")]


def test_every_command_is_run():
    found = {(document, section) for document in DOCUMENTS for section in documented_sections(document)}
    names = ["test_export", "test_own_parts", *(path.stem for path in Path(__file__).parent.glob("test_readme*.py"))]
    sections = [pair for name in names for pair in importlib.import_module(name).SECTIONS]
    assert found == {*RUN_BY_PEOPLE, *sections}


def test_language_models(tmp_path):
    write_stories(tmp_path / "downloads/ptb", num_stories=50)
    assert any("perplexity " in output for output in run_sections(LANGUAGE_MODELS, tmp_path))
    assert (tmp_path / "checkpoints/hydra/checkpoint_best.pt").exists()


def test_models(data, tmp_path):
    for name in ("ptb", "text8"):
        copy_data(data, tmp_path / "data-bin" / name)
    run_sections(MODELS, tmp_path)
