"""Two processes that share the rows train like one that holds them all."""

import subprocess

import pytest
from commands import ENVIRONMENT, TASK, assert_same, load, train, train_command

NO_DROPOUT = [
    flag for name in ("embedding", "input", "hidden", "output", "weight") for flag in (f"--dropout-{name}", "0")
] + ["--latent-dropout", "0"]
# the balance term is a property of the rows of one process, so it is left out
AVERAGED = ["--averaging", "immediate", "--nonmonotone-interval", "100"]
FLAGS = [*NO_DROPOUT, *AVERAGED, "--balance", "0", "--lr", "1", "--no-epoch-checkpoints"]


def train_two(data, save_dir, *flags):
    """Train with two gloo processes of two rows each."""
    rendezvous = save_dir / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    processes = [
        subprocess.Popen(
            train_command(
                *(data, save_dir, *FLAGS, *flags, "--batch-size", 2, "--batch-size-valid", 1),
                *("--distributed-world-size", 2, "--distributed-rank", rank, "--distributed-no-spawn"),
                *("--distributed-init-method", f"file://{rendezvous}", "--distributed-backend", "gloo"),
                *("--ddp-backend", "legacy_ddp"),
            ),
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("two")
    train_two(data, save_dir, "--max-epoch", 2)
    return load(save_dir / "checkpoint_last.pt")


def test_two_processes_equal_one(data, tmp_path, two):
    train(data, tmp_path, *FLAGS, "--max-epoch", 2)
    one = load(tmp_path / "checkpoint_last.pt")
    for name, parameter in one["model"].items():
        assert (parameter - two["model"][name]).abs().max() <= 1e-5, name
    for layer_one, layer_two in zip(one["extra_state"][TASK]["hidden_state"], two["extra_state"][TASK]["hidden_state"]):
        for part_one, part_two in zip(layer_one, layer_two):
            assert (part_one - part_two).abs().max() <= 1e-5
    assert one["extra_state"]["val_loss"] == pytest.approx(two["extra_state"]["val_loss"], abs=2e-5)


def test_two_processes_resume_bit_for_bit(data, tmp_path, two):
    num_updates = two["optimizer_history"][-1]["num_updates"] * 3 // 4
    train_two(data, tmp_path, "--max-update", num_updates)
    train_two(data, tmp_path, "--max-epoch", 2)
    resumed = load(tmp_path / "checkpoint_last.pt")
    assert_same(resumed["model"], two["model"], "model")
    assert_same(resumed["last_optimizer_state"], two["last_optimizer_state"], "optimizer")
    assert_same(resumed["extra_state"][TASK], two["extra_state"][TASK], TASK)
