"""What the README says of translation, and of training in several processes."""

import pytest
from readme_commands import commands_of, put_multi30k, run_commands


@pytest.mark.slow
def test_translation_and_two_processes(tmp_path):
    put_multi30k(tmp_path)
    sections = ("Translation", "Several processes and machines")
    translated, _ = run_commands([block for name in sections for block in commands_of("README.md", name)], tmp_path)
    assert "tok:13a" in translated
    assert (tmp_path / "checkpoints/two/checkpoint_best.pt").exists()
