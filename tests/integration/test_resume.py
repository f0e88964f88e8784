"""A run that was stopped resumes bit for bit, with what validation decided; a finished run stays as it is."""

import shutil
from inspect import unwrap
from types import SimpleNamespace

import fairseq_cli.train
import pytest
import torch
from commands import (
    TASK,
    assert_same_training,
    load,
    started_training,
    train,
    training_arguments,
    updates_of,
    wait_until,
)
from fairseq import checkpoint_utils
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule

from fairseq_plugins.fairseq_patches.resume import PATIENCE
from fairseq_plugins.output_layers import base

FLAGS = ["--max-epoch", "5", "--save-interval-updates", "9"]


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("uninterrupted")
    log = train(data, save_dir, *FLAGS)
    first_averaged = log[: log.index("averaging starts")].count("end of epoch") + 2
    return save_dir, first_averaged


def mid_epoch_checkpoints(save_dir, epoch):
    """The checkpoints inside an epoch, in order."""
    paths = save_dir.glob(f"checkpoint_{epoch}_*.pt")
    return sorted(paths, key=lambda path: int(path.stem.split("_")[-1]))


def test_resume_after_sigkill(data, tmp_path, uninterrupted):
    expected, first_averaged_epoch = uninterrupted
    assert 3 <= first_averaged_epoch <= 4, "the corpus must trigger averaging in the middle of the run"
    with started_training(*training_arguments(data, tmp_path, *FLAGS)) as process:
        wait_until((tmp_path / mid_epoch_checkpoints(expected, first_averaged_epoch + 1)[0].name).exists, process)
        process.kill()
    assert not (tmp_path / "checkpoint5.pt").exists(), "killed too late to test anything"
    train(data, tmp_path, *FLAGS)
    assert_same_training(load(tmp_path / "checkpoint_last.pt"), load(expected / "checkpoint_last.pt"))


@pytest.fixture
def train_here(data, run_here):
    """``train_here(save_dir, *flags)``: train two epochs, or as far as the flags say, and return the checkpoint.

    It trains in this process. Each training draws from the generators that it seeds.
    """

    def train(save_dir, *flags):
        arguments = training_arguments(data, save_dir, "--max-epoch", 2, "--no-epoch-checkpoints", *flags)
        run_here(fairseq_cli.train, *arguments)
        return load(save_dir / "checkpoint_last.pt")

    return train


@pytest.fixture
def train_with_a_stop(train_here, tmp_path):
    """``train_with_a_stop(*flags)``: a training in two parts is that in one go; returns the checkpoint of the stop."""

    def train(*flags):
        whole = train_here(tmp_path / "whole", *flags)
        num_updates = updates_of(whole) - 3
        stopped = train_here(tmp_path / "parts", *flags, "--max-update", num_updates)
        assert stopped["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
        assert_same_training(train_here(tmp_path / "parts", *flags), whole)
        return stopped

    return train


def test_a_cell_with_more_states_resumes_bit_for_bit(train_with_a_stop, monkeypatch):
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    # the state of a rectifier that skips words has the last first letter, too
    cell = ["--rnn-cell", "rectifier", "--word-skip", "the"]
    train_with_a_stop(*cell, "--output-precision", "auto", "--max-epoch", 1)


TRANSFORMER = [
    *("--arch", "transformer_lm_doc", "--decoder-layers", 2, "--decoder-embed-dim", 8, "--decoder-ffn-embed-dim", 16),
    *("--decoder-attention-heads", 2, "--criterion", "regularized_cross_entropy", "--balance", 0.001),
    *("--batch-size", 4, "--tokens-per-sample", 20, "--optimizer", "adam", "--lr", 0.01, "--max-epoch", 1),
    "--no-epoch-checkpoints",
]


def test_a_transformer_resumes_bit_for_bit(data, run_here, tmp_path):
    def train(folder, *flags):
        flags = ["--task", "stateful_lm", *TRANSFORMER, "--save-dir", tmp_path / folder, *flags]
        run_here(fairseq_cli.train, data, *flags)
        return load(tmp_path / folder / "checkpoint_last.pt")

    whole = train("whole")
    stopped = train("parts", "--max-update", updates_of(whole) - 3)
    assert stopped["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    assert_same_training(train("parts"), whole)


@pytest.mark.usefixtures("gates_of_the_examples")
def test_rotated_rows_and_a_gate_with_state_resume_bit_for_bit(train_with_a_stop):
    flags = ["--row-offsets", "random", "--window-lengths", "random", "--dropout-carried-state", 0.3]
    flags += ["--adversarial-epsilon", 0.01]
    stopped = train_with_a_stop(*flags, "--output-gate", "trace", "--trace-decay", "0.8")
    saved = stopped["extra_state"][TASK]
    assert len(set(saved["row_offsets"])) > 1
    trace = saved["hidden_state"]["gate"]
    assert trace.shape == (4, 12) and trace.any(dim=1).all()


def test_a_training_in_bfloat16_resumes_bit_for_bit(train_with_a_stop):
    stopped = train_with_a_stop("--bf16", "--optimizer", "sgd", "--max-epoch", 1)
    updated = stopped["last_optimizer_state"]["master_weights"][0]
    assert not torch.equal(updated, updated.bfloat16().float())
    saved = stopped["model"]["decoder.output.prior.weight"]  # in 32 bits, of which the last 16 are never used
    assert torch.equal(saved, saved.bfloat16().float())


# what validation has decided, the rate and when to stop

# steps so small that five digits of the loss stay as they are, and no epoch is better than the first: the rate is
# halved after the third, and the fifth is the last
PLATEAU_FLAGS = ["--clip-norm", 1e-9, "--patience", 4, "--nonmonotone-interval", 99, "--lr", 1]
PLATEAU_FLAGS += ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-shrink", 0.5, "--lr-patience", 1]


def rate(checkpoint):
    return checkpoint["last_optimizer_state"]["param_groups"][0]["lr"]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(data, folder, *PLATEAU_FLAGS, "--max-epoch", 9)
    return folder


def test_the_rate_falls_and_the_training_stops(whole):
    assert [rate(load(whole / f"checkpoint{epoch}.pt")) for epoch in (1, 3, 4, 5)] == [1, 1, 0.5, 0.5]
    assert not (whole / "checkpoint6.pt").exists()


def test_a_resumed_run_decides_the_same(whole, data, tmp_path):
    shutil.copy(whole / "checkpoint3.pt", tmp_path / "checkpoint_last.pt")
    train(data, tmp_path, *PLATEAU_FLAGS, "--max-epoch", 9)
    found, expected = (load(folder / "checkpoint_last.pt") for folder in (tmp_path, whole))
    assert_same_training(found, expected)
    assert all(found["extra_state"][key] == expected["extra_state"][key] for key in ("best", PATIENCE))
    assert not (tmp_path / "checkpoint6.pt").exists()


def test_fine_tuning_begins_with_its_own_rate_and_patience(whole, data, tmp_path):
    train(data, tmp_path, *PLATEAU_FLAGS, "--finetune-from-model", whole / "checkpoint_last.pt", "--max-epoch", 1)
    found = load(tmp_path / "checkpoint_last.pt")
    assert rate(found) == 1 and found["extra_state"][PATIENCE]["num_runs"] == 0


def test_fairseq_alone_forgets_what_validation_decided():
    scheduler = SimpleNamespace(lr_scheduler=SimpleNamespace(best=1.0, last_epoch=2, num_bad_epochs=3))
    assert 3 not in ReduceLROnPlateauLRSchedule.state_dict.__wrapped__(scheduler).values()


# a run that ended by itself is started again with the same flags


@pytest.fixture
def train_again(train_here, tmp_path):
    """``train_again()``: numbers of updates after the first and the second start of a training of three updates."""

    def train():
        states = [train_here(tmp_path, "--max-update", 3) for _ in range(2)]
        return list(map(updates_of, states))

    return train


def test_a_finished_run_stays_as_it_is(train_again):
    assert train_again() == [3, 3]


def test_fairseq_alone_trains_a_finished_run_on(train_again, monkeypatch):
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", unwrap(checkpoint_utils.load_checkpoint))
    assert train_again() == [3, 4]
