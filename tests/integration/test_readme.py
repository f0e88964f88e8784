"""What the README says of language models, and that every command of the READMEs is run by some test."""

import pytest
from commands import ROOT
from readme_commands import commands_of, documented_sections, put_penn_treebank, run_commands

RUN_HERE = [("README.md", "Language models")]
RUN_BY_OTHERS = {
    ("README.md", "Install"): "scripts/test.sh and the tests of installation",
    ("README.md", "Two commands"): "whoever runs this test, and a person",
    ("README.md", "Translation"): "test_readme_translation.py",
    ("README.md", "Several processes and machines"): "test_readme_translation.py",
    ("README.md", "Headlines"): "test_readme_headlines.py",
    ("fairseq_plugins/cli/README.md", "Translations and headlines"): "test_readme_headlines.py",
    ("fairseq_plugins/cli/README.md", "Evaluate language models"): "test_readme_of_commands.py",
    ("fairseq_plugins/cli/README.md", "Look into language models"): "test_readme_of_commands.py",
    ("fairseq_plugins/cli/README.md", "Compare runs"): "test_readme_of_commands.py",
    ("fairseq_plugins/cli/README.md", "Speed and memory"): "test_readme_of_commands.py",
    ("fairseq_plugins/demo_corpus/README.md", "An excerpt of Tatoeba, German and English"): "scripts/demo.sh",
    ("fairseq_plugins/models/README.md", "Architectures"): "test_readme_of_commands.py",
}


def test_every_command_is_run():
    documents = ["README.md", "scripts/README.md", "tests/README.md"]
    documents += [str(path.relative_to(ROOT)) for path in (ROOT / "fairseq_plugins").rglob("README.md")]
    found = {(document, section) for document in documents for section in documented_sections(document)}
    assert found == {*RUN_HERE, *RUN_BY_OTHERS}


@pytest.mark.slow
def test_language_models(tmp_path):
    put_penn_treebank(tmp_path)
    for document, section in RUN_HERE:
        outputs = run_commands(commands_of(document, section), tmp_path)
        assert any("perplexity " in output for output in outputs)
