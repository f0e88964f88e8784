"""A small corpus and a trained model, made once."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, preprocess, train


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "text"
    subprocess.run([sys.executable, ROOT / "scripts/generate_corpus.py", out, "--stories", "50"], check=True)
    return out


@pytest.fixture(scope="session")
def data(text, tmp_path_factory) -> Path:
    return preprocess(text, tmp_path_factory.mktemp("binarised") / "data bin")


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory) -> Path:
    """A finished training: its save directory, with train.log."""
    save_dir = tmp_path_factory.mktemp("trained")
    log = train(data, save_dir, "--max-epoch", 2, "--no-epoch-checkpoints")
    (save_dir / "train.log").write_text(log)
    return save_dir
