"""Trainings by noise-contrastive estimation: they learn, are resumed, and share their rows between processes."""

import re

import fairseq_cli.train
import pytest
import torch
from commands import PLUGINS, TASK, assert_same, load, run
from test_two_processes import run_two

pytestmark = pytest.mark.slow

FLAGS = [
    *("--task", "stateful_lm", "--arch", "fpnn_lm", "--embed-dim", 16, "--hidden-sizes", 16, "--column-norm", 0),
    *("--batch-size", 4, "--batch-size-valid", 1, "--tokens-per-sample", 20, "--no-epoch-checkpoints"),
    *("--criterion", "noise_contrastive", "--optimizer", "sgd", "--lr", 2, "--clip-norm", 0.25),
    *("--log-format", "simple", "--log-interval", 10, "--max-epoch", 2),
]

USER = ["--user-dir", PLUGINS]


@pytest.fixture
def train_here(data, run_here):
    """``train_here(save_dir, *flags)``: train in this process, and return the checkpoint."""

    def train(save_dir, *flags):
        run_here(fairseq_cli.train, data, "--save-dir", save_dir, *FLAGS, *flags)
        return load(save_dir / "checkpoint_last.pt")

    return train


def assert_same_training(actual, expected):
    for part in ("model", "criterion", "last_optimizer_state"):
        assert_same(actual[part], expected[part], part)
    for part in ("train_iterator", "val_loss", TASK):
        assert_same(actual["extra_state"][part], expected["extra_state"][part], part)


@pytest.mark.parametrize(
    "flags",
    [
        ["--normaliser", "learned"],
        ["--noise-sharing", "batch", "--noise-samples", 100, "--update-freq", 2],
        ["--optimizer", "adagrad", "--lr", 0.1],
        ["--optimizer", "damped_adagrad", "--lr", 0.1],
        ["--optimizer", "nt_asgd", "--sparse-gradients", "off"],
        ["--amp"],
        ["--bf16", "--sparse-gradients", "off"],
    ],
)
def test_it_learns_and_is_resumed_bit_for_bit(flags, train_here, tmp_path):
    whole = train_here(tmp_path / "whole", *flags)
    num_updates = whole["optimizer_history"][-1]["num_updates"]
    stopped = train_here(tmp_path / "parts", *flags, "--max-update", num_updates * 3 // 4)
    assert stopped["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    assert_same_training(train_here(tmp_path / "parts", *flags), whole)
    assert (whole["criterion"] is not None) == ("learned" in flags)
    first = train_here(tmp_path / "first", *flags, "--max-update", 1)
    assert whole["extra_state"]["val_loss"] < first["extra_state"]["val_loss"] - 0.2


def test_updates_with_sparse_gradients_are_those_with_dense_ones(train_here, tmp_path):
    flags = ["--output-layer", "tied", "--max-update", 20, "--optimizer", "sgd"]
    sparse, dense = (train_here(tmp_path / kind, *flags, "--sparse-gradients", kind)["model"] for kind in ("on", "off"))
    for name, weight in sparse.items():
        torch.testing.assert_close(weight, dense[name], rtol=1e-4, atol=1e-6, msg=name)


def test_two_processes_equal_one_where_the_noise_is_shared_and_resume_bit_for_bit(data, tmp_path):
    flags = ["--sparse-gradients", "off", "--noise-sharing", "batch", "--normaliser", "learned", "--dropout-output", 0]
    flags += ["--max-epoch", 1]
    half = ["--batch-size", 2]
    result = run("fairseq_cli.train", data, "--save-dir", tmp_path / "one", "--cpu", *USER, *FLAGS, *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    arguments = [data, "--cpu", *USER, *FLAGS, *flags, *half, "--save-dir"]
    run_two([*arguments, tmp_path / "two"], tmp_path / "two")
    one, two = (load(tmp_path / name / "checkpoint_last.pt") for name in ("one", "two"))
    for part in ("model", "criterion"):
        for name, weight in one[part].items():
            torch.testing.assert_close(two[part][name], weight, rtol=0, atol=1e-5, msg=name)
    num_updates = two["optimizer_history"][-1]["num_updates"] * 3 // 4
    run_two([*arguments, tmp_path / "parts", "--max-update", num_updates], tmp_path / "parts")
    run_two([*arguments, tmp_path / "parts"], tmp_path / "parts")
    assert_same_training(load(tmp_path / "parts/checkpoint_last.pt"), two)


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--noise-samples", 0], "--noise-samples 0: give at least 1"),
        (
            ["--fp16", "--fp16-no-flatten-grads"],
            "--fp16 and --bf16 copy gradients into dense ones: give --sparse-gradients off",
        ),
        (["--optimizer", "nt_asgd"], "AveragedSGD with these flags changes all rows; give off, or --optimizer sgd"),
        (["--optimizer", "adam"], "Adam with these flags changes all rows; give off, or --optimizer sgd"),
        (["--momentum", 0.9], "SGD with these flags changes all rows; give off"),
        (["--weight-decay", 1e-6], "SGD with these flags changes all rows; give off"),
        (["--optimizer", "damped_adagrad", "--weight-decay", 1e-6], "Adagrad with these flags changes all rows"),
    ],
)
def test_what_does_not_go_together(flags, told, data, run_here, tmp_path):
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        run_here(fairseq_cli.train, data, "--save-dir", tmp_path, *FLAGS, *flags)
    assert len(str(raised.value).splitlines()) == 1
    assert not list(tmp_path.glob("*.pt"))
