"""FPNN by fairseq's commands: columns that keep their length, pictures of its memory, noise-contrastive training."""

import json
import math

import fairseq_cli.train
import pytest
import torch
from commands import assert_same_training, load, train_pair, updates_of
from paths import PLUGINS

LENGTH = 2.0
FLAGS = [
    *("--user-dir", PLUGINS, "--arch", "fpnn_lm", "--embed-dim", 12, "--hidden-sizes", 12, "--column-norm", LENGTH),
    *("--task", "stateful_lm", "--criterion", "regularized_cross_entropy", "--l1-regularization", 1e-5),
    *("--batch-size", 4, "--batch-size-valid", 2, "--tokens-per-sample", 20, "--dropout-output", 0),
    *("--max-epoch", 2, "--no-epoch-checkpoints", "--num-workers", 0, "--log-format", "simple"),
]
ADAGRAD = ["--optimizer", "adagrad", "--lr", 0.05]
HELD = ("decoder.embedding.weight", "decoder.output.projection.weight")


def assert_held(state, *, precision=1e-6):
    names = [name for name in state["model"] if name.endswith(("weight", "connection_bias"))]
    assert len(names) == 3
    for weight in (state["model"][name] for name in HELD):
        lengths = weight.double().norm(dim=0)
        torch.testing.assert_close(lengths, torch.full_like(lengths, LENGTH), rtol=precision, atol=0)


@pytest.fixture
def train_here(data, run_here):
    def train(save_dir, *flags):
        run_here(fairseq_cli.train, data, "--save-dir", save_dir, *flags)
        return load(save_dir / "checkpoint_last.pt")

    return train


def test_columns_are_held_and_a_stopped_training_goes_on_bit_for_bit(train_here, tmp_path):
    optimizer, precision = [*ADAGRAD, "--bf16", "--cpu"], 2**-8
    whole = train_here(tmp_path / "whole", *FLAGS, *optimizer)
    assert_held(whole, precision=precision)
    num_updates = updates_of(whole) * 3 // 4
    stopped = train_here(tmp_path / "parts", *FLAGS, *optimizer, "--max-update", num_updates)
    assert_held(stopped, precision=precision)
    assert_same_training(train_here(tmp_path / "parts", *FLAGS, *optimizer), whole)


@pytest.mark.parametrize(
    "flags, precision",
    [
        (["--optimizer", "damped_adagrad", "--lr", 0.05, "--bf16", "--cpu"], 2**-8),
        ([*ADAGRAD, "--amp", "--cpu"], 1e-6),
    ],
)
def test_columns_are_held_by_other_optimisers_and_in_16_bits(flags, precision, train_here, tmp_path):
    assert_held(train_here(tmp_path, *FLAGS, *flags, "--max-update", 5), precision=precision)


def test_memory_is_drawn(data, train_here, printed_by, refuse, tmp_path):
    train_here(tmp_path / "diagonal", *FLAGS, *ADAGRAD, "--max-update", 2)
    train_here(tmp_path / "rectifier", *FLAGS, *ADAGRAD, "--max-update", 2, "--rnn-cell", "rectifier")
    for command, name, other, told in (
        ("analyze timescales", "diagonal", "rectifier", "longest, tokens"),
        ("analyze spectrum", "rectifier", "diagonal", "most negative real"),
    ):
        picture = tmp_path / f"{command}.png"
        paths = {kind: f"{kind}={tmp_path / kind}/checkpoint_last.pt" for kind in (name, other)}
        printed = printed_by(command, data, "--path", paths[name], "--plot", picture)
        assert told in printed and picture.stat().st_size > 5000
        found = json.loads(printed_by(command, data, "--path", paths[name], "--json"))
        (layer,) = found["models"][0]["layers"]
        assert found["models"][0]["name"] == name and command in found["command"] and layer["layer"] == 1
        units = layer["values"] if name == "diagonal" else layer["eigenvalues"]
        assert 0 < len(units) <= 12
        assert refuse(command, data, "--path", paths[other])


# noise-contrastive estimation


NOISE_FLAGS = [
    *("--task", "stateful_lm", "--arch", "fpnn_lm", "--embed-dim", 16, "--hidden-sizes", 16, "--column-norm", 0),
    *("--batch-size", 4, "--batch-size-valid", 1, "--tokens-per-sample", 20, "--no-epoch-checkpoints"),
    *("--criterion", "noise_contrastive", "--optimizer", "sgd", "--lr", 2, "--clip-norm", 0.25),
    *("--log-format", "simple", "--log-interval", 10, "--max-epoch", 1),
]


@pytest.fixture
def train_by_noise(data, run_here):
    """``train_by_noise(save_dir, *flags)``: train in this process, and return the checkpoint."""

    def train(save_dir, *flags):
        run_here(fairseq_cli.train, data, "--save-dir", save_dir, *NOISE_FLAGS, *flags)
        return load(save_dir / "checkpoint_last.pt")

    return train


@pytest.mark.parametrize(
    "flags",
    [
        ["--normaliser", "learned", "--optimizer", "damped_adagrad", "--lr", 0.1],
        ["--noise-sharing", "batch", "--noise-samples", 100, "--update-freq", 2, "--amp"],
        ["--bf16", "--sparse-gradients", "off"],
    ],
)
def test_noise_contrastive_training_learns_and_resumes_bit_for_bit(flags, train_by_noise, tmp_path):
    whole = train_by_noise(tmp_path / "whole", *flags)
    num_updates = updates_of(whole)
    stopped = train_by_noise(tmp_path / "parts", *flags, "--max-update", num_updates * 3 // 4)
    assert stopped["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    assert_same_training(train_by_noise(tmp_path / "parts", *flags), whole)
    assert (whole["criterion"] is not None) == ("learned" in flags)
    num_words = len(whole["model"]["decoder.embedding.weight"])
    assert whole["extra_state"]["val_loss"] < math.log(num_words) - 0.2


def test_updates_with_sparse_gradients_are_those_with_dense_ones(train_by_noise, tmp_path):
    flags = ["--output-layer", "tied", "--max-update", 20, "--optimizer", "sgd"]
    sparse, dense = (
        train_by_noise(tmp_path / kind, *flags, "--sparse-gradients", kind)["model"] for kind in ("on", "off")
    )
    for name, weight in sparse.items():
        torch.testing.assert_close(weight, dense[name], rtol=1e-4, atol=1e-6, msg=name)


def test_two_processes_hold_the_columns_of_one_and_share_its_noise(data, train_by_noise, tmp_path):
    flags = ["--sparse-gradients", "off", "--noise-sharing", "batch", "--normaliser", "learned", "--dropout-output", 0]
    flags += ["--column-norm", LENGTH]
    one = train_by_noise(tmp_path / "one", *flags)
    arguments = [data, "--cpu", "--user-dir", PLUGINS, *NOISE_FLAGS, *flags, "--batch-size", 2]
    train_pair([*arguments, "--save-dir", tmp_path / "two"], tmp_path / "two")
    two = load(tmp_path / "two/checkpoint_last.pt")
    assert_held(two)
    for part in ("model", "criterion"):
        for name, weight in one[part].items():
            torch.testing.assert_close(two[part][name], weight, rtol=0, atol=1e-5, msg=name)
