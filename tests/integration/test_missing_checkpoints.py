"""``fairseq-train`` with a checkpoint that is not there."""

import fairseq_cli.train
import pytest
from commands import training_arguments

from fairseq_plugins.fairseq_patches import saving

pytestmark = pytest.mark.slow


@pytest.fixture
def train_from_nothing(data, tmp_path, run_here):
    def train() -> str:
        flags = ["--max-update", 1, "--restore-file", tmp_path / "none.pt"]
        return run_here(fairseq_cli.train, *training_arguments(data, tmp_path / "runs", *flags))

    return train


def test_it_is_refused(train_from_nothing, tmp_path):
    with pytest.raises(ValueError, match=f"--restore-file {tmp_path}/none.pt does not exist"):
        train_from_nothing()
    assert not list(tmp_path.glob("runs/*.pt"))


def test_fairseq_alone_begins_anew(train_from_nothing, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_named_checkpoint", lambda *args: ("", None))
    assert "No existing checkpoint found" in train_from_nothing()
    assert (tmp_path / "runs/checkpoint_last.pt").is_file()
