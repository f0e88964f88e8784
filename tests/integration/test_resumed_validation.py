"""What validation has decided, the rate and when to stop, is kept where a training is resumed."""

import shutil
from types import SimpleNamespace

import pytest
from commands import TASK, assert_same, load, train
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule

from fairseq_plugins.fairseq_patches.resume import PATIENCE

pytestmark = pytest.mark.slow
# steps so small that five digits of the loss stay as they are, and no epoch is better than the first: the rate is
# halved after the third, and the fifth is the last
FLAGS = ["--clip-norm", 1e-9, "--patience", 4, "--nonmonotone-interval", 99, "--lr", 1]
FLAGS += ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-shrink", 0.5, "--lr-patience", 1]


def rate(checkpoint):
    return checkpoint["last_optimizer_state"]["param_groups"][0]["lr"]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(data, folder, *FLAGS, "--max-epoch", 9)
    return folder


def test_the_rate_falls_and_the_training_stops(whole):
    assert [rate(load(whole / f"checkpoint{epoch}.pt")) for epoch in (1, 3, 4, 5)] == [1, 1, 0.5, 0.5]
    assert not (whole / "checkpoint6.pt").exists()


@pytest.mark.parametrize("num_epochs", [1, 2, 3, 4])
def test_a_training_that_was_resumed_is_the_same(num_epochs, whole, data, tmp_path):
    if num_epochs == 2:
        train(data, tmp_path, *FLAGS, "--max-epoch", num_epochs)
    else:
        shutil.copy(whole / f"checkpoint{num_epochs}.pt", tmp_path / "checkpoint_last.pt")
    train(data, tmp_path, *FLAGS, "--max-epoch", 9)
    expected, found = load(whole / "checkpoint_last.pt"), load(tmp_path / "checkpoint_last.pt")
    for key in ("model", "last_optimizer_state"):
        assert_same(found[key], expected[key], key)
    for key in ("train_iterator", "val_loss", "best", PATIENCE, TASK):
        assert_same(found["extra_state"][key], expected["extra_state"][key], key)
    ours, theirs = (state["optimizer_history"][-1] for state in (found, expected))
    assert ours["lr_scheduler_state"] == theirs["lr_scheduler_state"]
    assert not (tmp_path / "checkpoint6.pt").exists()


def test_fine_tuning_begins_with_its_own_rate_and_patience(whole, data, tmp_path):
    train(data, tmp_path, *FLAGS, "--finetune-from-model", whole / "checkpoint_last.pt", "--max-epoch", 1)
    found = load(tmp_path / "checkpoint_last.pt")
    assert rate(found) == 1 and found["extra_state"][PATIENCE]["num_runs"] == 0


def test_fairseq_alone_forgets_what_validation_decided():
    scheduler = SimpleNamespace(lr_scheduler=SimpleNamespace(best=1.0, last_epoch=2, num_bad_epochs=3))
    assert 3 not in ReduceLROnPlateauLRSchedule.state_dict.__wrapped__(scheduler).values()
