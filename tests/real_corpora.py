"""Real corpora on disk, which tests read where they are and skip without."""

import os
from pathlib import Path

import pytest

VARIABLE = "FAIRSEQ_PLUGINS_CORPORA"


def corpus_folder(name: str) -> Path:
    """The folder of a real corpus; the test that asks is skipped where it is absent."""
    root = os.environ.get(VARIABLE)
    if not root:
        pytest.skip(f"{VARIABLE} is not set: name the folder of the real corpora")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: {VARIABLE} has no {name}")
    return folder.resolve()
