"""The READMEs: links, commands, every section run by some test; here those on language models."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest
from binarised_data import copy_data
from generated_corpora import write_stories
from paths import PLUGINS, ROOT
from readme_commands import documented_sections, run_sections

LANGUAGE_MODELS = [("README.md", "Language models"), ("README.md", "By hand")]
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


PATTERNS = ["*.md"]
PATTERNS += [f"{folder}/**/*.md" for folder in ("data-prep", "fairseq_plugins", "results", "scripts", "tests")]
READMES = sorted({str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)})


@pytest.mark.parametrize("document", READMES)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / document).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("document", READMES)
def test_commands_are_well_formed(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        if language in ("", "bash"):
            read = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
            assert not read.stderr, block


def slugs(document):
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", READMES)
def test_links_with_an_anchor_lead_to_a_heading(document):
    path = ROOT / document
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text(encoding="utf-8")):
        assert anchor in slugs(path.parent / target if target else path), f"{target}#{anchor}"


def test_language_models(tmp_path):
    write_stories(tmp_path / "downloads/ptb", num_stories=50)
    assert any("perplexity " in output for output in run_sections(LANGUAGE_MODELS, tmp_path))
    assert (tmp_path / "checkpoints/hydra/checkpoint_best.pt").exists()


def test_models(data, tmp_path):
    for name in ("ptb", "text8"):
        copy_data(data, tmp_path / "data-bin" / name)
    run_sections(MODELS, tmp_path)
