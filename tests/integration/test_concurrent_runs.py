"""Several runs at once in one save directory, and one that its caller leaves."""

import contextlib
import os
import re
import select
import shutil
import signal
import socket

from commands import load, run, started, succeed, train, training_arguments, wait_until
from warm_process import PYTHON

from fairseq_plugins.fairseq_patches.saving import LOCK_FILE
from fairseq_plugins.reports.training_log import TrainingLog

WORKERS = ["--num-workers", 2]


@contextlib.contextmanager
def training(data, save_dir, *flags):
    """A training that runs on, once it has locked its directory."""
    endless = ["--max-epoch", 10_000, "--no-epoch-checkpoints"]
    arguments = training_arguments(data, save_dir, *endless, *flags)
    with started([PYTHON, "-m", "fairseq_cli.train", *arguments]) as process:
        wait_until((save_dir / "checkpoint_last.pt").exists, process)
        yield process


def test_the_second_is_refused_until_the_first_is_killed(data, tmp_path):
    with training(data, tmp_path, *WORKERS) as first:
        second = run("fairseq_cli.train", *training_arguments(data, tmp_path, "--max-epoch", 1))
        assert first.poll() is None and second.returncode != 0
        assert second.stderr.strip().splitlines()[-1] == (
            f"error: the run with process id {first.pid} on host {socket.gethostname()} writes to --save-dir "
            f"{tmp_path}: wait until it has ended, end it, or give another --save-dir"
        )
        train(data, tmp_path, "--max-epoch", 1, "--no-save", "--reset-dataloader")
        first.end()
        epoch = load(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]["epoch"]
    train(data, tmp_path, "--max-epoch", epoch + 1, "--no-epoch-checkpoints")
    assert load(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]["epoch"] > epoch


def test_a_training_whose_directory_another_took_over_ends(data, tmp_path):
    save_dir = tmp_path / "runs"
    with training(data, save_dir) as first:
        os.kill(first.pid, signal.SIGSTOP)  # else it may lock the directory again before the second has begun
        shutil.rmtree(save_dir)
        with training(data, save_dir) as second:
            os.kill(first.pid, signal.SIGCONT)
            ended = first.finish()
            assert ended.returncode == 2 and second.poll() is None
            refused = f"error: the run with process id {second.pid} on host"
            assert ended.stderr.strip().splitlines()[-1].startswith(refused)
            assert not (save_dir / "crash.pt").exists()


def test_a_training_ends_with_the_command_that_keeps_its_log(data, tmp_path):
    train = ["fairseq_plugins", "train", "demo_lm", "lstm_lm_awd", data, "--save-dir", tmp_path, "--cpu"]
    train += ["--embed-dim", 8, "--hidden-sizes", "8 8", "--max-epoch"]
    with started([PYTHON, "-m", *train, 10_000]) as caller:
        wait_until((tmp_path / "checkpoint_last.pt").exists, caller)
        ended = os.pidfd_open(int(re.findall(r"process id (\d+)", (tmp_path / LOCK_FILE).read_text())[0]))
        caller.end()
        assert select.select([ended], [], [], 20)[0], "it trains on without a log"
        os.close(ended)
    num_epochs = load(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]["epoch"] + 1
    succeed(*train, num_epochs)
    assert list(TrainingLog(tmp_path).valid_curve) == [*range(1, num_epochs + 1)]
