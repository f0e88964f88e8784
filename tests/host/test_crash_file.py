"""What an error in an update leaves in the save directory."""

from types import SimpleNamespace

import pytest
from fairseq.trainer import Trainer

from fairseq_plugins.flags.values import check_positive


def refuse():
    check_positive(-1, flag="--width")


def fail():
    raise ValueError("not of this package")


@pytest.fixture
def leaves_a_file(tmp_path):
    """Do what the host does with an error of an update, and look."""

    def leaves_a_file(save_checkpoint, update):
        trainer = SimpleNamespace(
            should_save_checkpoint_on_current_rank=True,
            state_dict=lambda: {"extra_state": {}},
            cfg=SimpleNamespace(checkpoint=SimpleNamespace(write_checkpoints_asynchronously=False)),
        )
        with pytest.raises(ValueError):
            try:
                update()
            except Exception:
                save_checkpoint(trainer, str(tmp_path / "crash.pt"), {})
                raise
        return (tmp_path / "crash.pt").exists()

    return leaves_a_file


def test_a_refused_training_is_not_saved(leaves_a_file):
    assert not leaves_a_file(Trainer.save_checkpoint, refuse)


def test_one_that_failed_is_saved(leaves_a_file):
    assert leaves_a_file(Trainer.save_checkpoint, fail)


def test_the_host_alone_saves_a_refused_training(leaves_a_file):
    save_checkpoint = Trainer.save_checkpoint
    while hasattr(save_checkpoint, "__wrapped__"):
        save_checkpoint = save_checkpoint.__wrapped__
    assert leaves_a_file(save_checkpoint, refuse)
