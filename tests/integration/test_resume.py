"""A run that was stopped resumes bit for bit, with what validation decided; a finished run stays as it is."""

import shutil
from inspect import unwrap
from types import SimpleNamespace

import fairseq_cli.train
import pytest
from commands import assert_same_training, load, started, train, training_arguments, updates_of, wait_until
from fairseq import checkpoint_utils
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from short_trainings import FAMILIES
from warm_process import PYTHON

from fairseq_plugins.fairseq_patches.resume import PATIENCE

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
    with started([PYTHON, "-m", "fairseq_cli.train", *training_arguments(data, tmp_path, *FLAGS)]) as process:
        wait_until((tmp_path / mid_epoch_checkpoints(expected, first_averaged_epoch + 1)[0].name).exists, process)
        process.end()
    assert not (tmp_path / "checkpoint5.pt").exists(), "killed too late to test anything"
    train(data, tmp_path, *FLAGS)
    assert_same_training(load(tmp_path / "checkpoint_last.pt"), load(expected / "checkpoint_last.pt"))


RUNS = {
    "DOC": [
        *("--row-offsets", "random", "--dropout-carried-state", 0.3, "--adversarial-epsilon", 0.01),
        *("--output-gate", "trace", "--trace-decay", 0.8),
    ],
    "Transformer language model, DOC": ["--balance", 0.001],
    "FPNN": ["--bf16"],
    "rectifier network, noise contrastive": [
        *("--word-skip", "the", "--normaliser", "learned", "--noise-sharing", "batch", "--noise-samples", 100),
        *("--optimizer", "damped_adagrad", "--update-freq", 2, "--bf16", "--sparse-gradients", "off"),
    ],
    "LSTM gate on two models": [],
    "encoder-decoder, DOC": ["--expert-warmup", 10],
}
"""Families of models, and flags beside theirs. The warmup ends after the stop."""


@pytest.mark.usefixtures("gates_of_the_examples")
@pytest.mark.parametrize("family", RUNS)
def test_a_stopped_run_resumes_bit_for_bit(family, run_here, tmp_path):
    def train(folder, num_updates):
        flags = [*FAMILIES[family], *RUNS[family], "--max-update", num_updates, "--no-epoch-checkpoints"]
        run_here(fairseq_cli.train, *flags, "--save-dir", tmp_path / folder)
        return load(tmp_path / folder / "checkpoint_last.pt")

    whole, stopped = train("whole", 12), train("parts", 9)
    assert stopped["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    assert_same_training(train("parts", 12), whole)


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
def train_again(run_here, tmp_path):
    """``train_again()``: numbers of updates after the first and the second start of a training of three updates."""

    def train():
        run_here(fairseq_cli.train, *FAMILIES["AWD-LSTM"], "--max-update", 3, "--save-dir", tmp_path)
        return updates_of(load(tmp_path / "checkpoint_last.pt"))

    return lambda: [train(), train()]


def test_a_finished_run_stays_as_it_is(train_again):
    assert train_again() == [3, 3]


def test_fairseq_alone_trains_a_finished_run_on(train_again, monkeypatch):
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", unwrap(checkpoint_utils.load_checkpoint))
    assert train_again() == [3, 4]
