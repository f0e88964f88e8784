"""Small checkpoint files."""

import pytest
import torch

CONTENT = {
    "model": {},
    "extra_state": {"train_iterator": {"epoch": 1}},
    "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}],
    "last_optimizer_state": None,
}


@pytest.fixture
def save_checkpoint(tmp_path):
    """``save_checkpoint(**content)``: write what fairseq reads as a checkpoint, and return its path."""

    def save(**content) -> str:
        path = tmp_path / "checkpoint.pt"
        torch.save({**CONTENT, **content}, path)
        return str(path)

    return save
