"""A training that was stopped goes on as if it had not been, bit for bit."""

import example_gates
import fairseq_cli.train
import pytest
from commands import (
    MODEL_FLAGS,
    TASK,
    TRAINING_FLAGS,
    assert_same,
    load,
    run_training,
    started_training,
    train,
    training_arguments,
    wait_for,
)

from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS

FLAGS = ["--max-epoch", "5", "--save-interval-updates", "9"]


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("uninterrupted")
    log = train(data, save_dir, *FLAGS)
    first_averaged = log[: log.index("averaging starts")].count("end of epoch") + 2
    return save_dir, first_averaged


def mid_epoch_checkpoint(save_dir, epoch):
    """The last checkpoint inside an epoch."""
    paths = save_dir.glob(f"checkpoint_{epoch}_*.pt")
    return max(paths, key=lambda path: int(path.stem.split("_")[-1]))


def assert_same_training(actual, expected):
    actual, expected = load(actual), load(expected)
    assert_same(actual["model"], expected["model"], "model")
    assert_same(actual["last_optimizer_state"], expected["last_optimizer_state"], "optimizer")
    for key in ("train_iterator", "val_loss", TASK):
        assert_same(actual["extra_state"][key], expected["extra_state"][key], key)


def kill_at(data, save_dir, checkpoint_name):
    """Start a training and kill it as soon as a checkpoint of that name appears."""
    with started_training(*training_arguments(data, save_dir, *FLAGS)) as process:
        wait_for(save_dir / checkpoint_name, process)
        process.kill()


@pytest.mark.parametrize("phase", ["before averaging", "while averaging"])
def test_resume_after_sigkill(data, tmp_path, uninterrupted, phase):
    expected, first_averaged_epoch = uninterrupted
    assert 3 <= first_averaged_epoch <= 4, "the corpus must trigger averaging in the middle of the run"
    epoch = first_averaged_epoch - 1 if phase == "before averaging" else first_averaged_epoch + 1
    kill_at(data, tmp_path, mid_epoch_checkpoint(expected, epoch).name)
    assert not (tmp_path / "checkpoint5.pt").exists(), "killed too late to test anything"
    train(data, tmp_path, *FLAGS)
    assert_same_training(tmp_path / "checkpoint_last.pt", expected / "checkpoint_last.pt")


def test_resume_after_a_stop_inside_an_epoch(data, tmp_path, uninterrupted):
    expected, _ = uninterrupted
    checkpoint = mid_epoch_checkpoint(expected, 2)
    num_updates = int(checkpoint.stem.split("_")[-1])
    train(data, tmp_path, *FLAGS, "--max-update", num_updates)
    train(data, tmp_path, *FLAGS)
    assert_same_training(tmp_path / "checkpoint_last.pt", expected / "checkpoint_last.pt")


@pytest.mark.parametrize("cell", sorted(set(RECURRENT_CELLS) - {"lstm"}))
def test_every_cell_resumes_bit_for_bit(cell, data, tmp_path):
    flags = ["--rnn-cell", cell, "--max-epoch", "2", "--no-epoch-checkpoints"]
    train(data, tmp_path / "whole", *flags)
    num_updates = load(tmp_path / "whole/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    train(data, tmp_path / "parts", *flags, "--max-update", num_updates - 3)
    train(data, tmp_path / "parts", *flags)
    assert_same_training(tmp_path / "parts/checkpoint_last.pt", tmp_path / "whole/checkpoint_last.pt")


def test_a_gate_with_state_resumes_bit_for_bit(data, tmp_path, run_here):
    """In this process, where the gate exists; each training draws from the generators that it seeds."""

    def train_here(save_dir, *flags):
        flags = [*MODEL_FLAGS, *TRAINING_FLAGS, "--output-gate", "trace", "--trace-decay", "0.8", *flags]
        run_here(fairseq_cli.train, data, "--save-dir", save_dir, *flags, "--max-epoch", 2, "--no-epoch-checkpoints")
        return load(save_dir / "checkpoint_last.pt")

    with example_gates.registered():
        num_updates = train_here(tmp_path / "whole")["optimizer_history"][-1]["num_updates"]
        stopped = train_here(tmp_path / "parts", "--max-update", num_updates - 3)["extra_state"]
        assert stopped["train_iterator"]["iterations_in_epoch"] > 0
        trace = stopped[TASK]["hidden_state"]["gate.trace"]
        assert trace.shape == (4, 12) and trace.any(dim=1).all()
        train_here(tmp_path / "parts")
    assert_same_training(tmp_path / "parts/checkpoint_last.pt", tmp_path / "whole/checkpoint_last.pt")


def test_checkpoint_holds_the_hidden_state_of_all_rows(uninterrupted):
    state = load(mid_epoch_checkpoint(uninterrupted[0], 1))["extra_state"][TASK]["hidden_state"]
    assert [part.shape for part in state.values()] == [(4, 16)] * 4
    assert all(part.abs().max() > 0 for part in state.values())


def test_other_number_of_rows_inside_an_epoch_is_refused(data, tmp_path, uninterrupted):
    checkpoint = mid_epoch_checkpoint(uninterrupted[0], 1)
    result = run_training(data, tmp_path, *FLAGS, "--batch-size", "3", "--restore-file", checkpoint)
    assert result.returncode != 0
    assert "epoch of 4 rows and cannot go on with 3" in result.stderr.strip().splitlines()[-1]
    assert not list(tmp_path.glob("*.pt"))
