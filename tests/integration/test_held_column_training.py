"""FPNN by real commands: columns keep their length in every checkpoint; what a trained network remembers is drawn."""

import json

import fairseq_cli.train
import pytest
import torch
from commands import PLUGINS, assert_same, load, run
from test_two_processes import run_two

pytestmark = pytest.mark.slow

LENGTH = 2.0
FLAGS = [
    *("--user-dir", PLUGINS, "--arch", "fpnn_lm", "--embed-dim", 12, "--hidden-sizes", 12, "--column-norm", LENGTH),
    *("--task", "stateful_lm", "--criterion", "regularized_cross_entropy", "--l1-regularization", 1e-5),
    *("--batch-size", 4, "--batch-size-valid", 2, "--tokens-per-sample", 20, "--dropout-output", 0),
    *("--max-epoch", 2, "--no-epoch-checkpoints", "--num-workers", 0, "--log-format", "simple"),
]
AVERAGED = ["--optimizer", "nt_asgd", "--averaging", "immediate", "--nonmonotone-interval", 100, "--lr", 1]
ADAGRAD = ["--optimizer", "adagrad", "--lr", 0.05]
HELD = ("decoder.embedding.weight", "decoder.output.projection.weight")


def assert_held(state, *, precision=1e-6):
    """The columns of the model, and of the raw weights beside an average."""
    weights = [state["model"][name] for name in HELD]
    names = [name for name in state["model"] if name.endswith(("weight", "connection_bias"))]
    kept = [one["exchanged"] for one in state["last_optimizer_state"]["state"].values() if "exchanged" in one]
    raw = [weight for weight in kept if weight.shape == weights[0].shape]
    assert len(raw) == (len(HELD) if kept else 0) and len(names) == 3
    for weight in (*weights, *raw):
        lengths = torch.full((12,), LENGTH).double()
        torch.testing.assert_close(weight.double().norm(dim=0), lengths, rtol=precision, atol=0)


@pytest.fixture
def train_here(data, run_here):
    def train(save_dir, *flags):
        run_here(fairseq_cli.train, data, "--save-dir", save_dir, *flags)
        return load(save_dir / "checkpoint_last.pt")

    return train


@pytest.mark.parametrize(
    "optimizer, precision",
    [(AVERAGED, 1e-6), (ADAGRAD, 1e-6), ([*ADAGRAD, "--bf16", "--cpu"], 2**-8)],
    ids=["averaged", "adagrad", "bf16"],
)
def test_columns_are_held_and_a_stopped_training_goes_on_bit_for_bit(optimizer, precision, train_here, tmp_path):
    whole = train_here(tmp_path / "whole", *FLAGS, *optimizer)
    assert_held(whole, precision=precision)
    num_updates = whole["optimizer_history"][-1]["num_updates"] * 3 // 4
    stopped = train_here(tmp_path / "parts", *FLAGS, *optimizer, "--max-update", num_updates)
    assert_held(stopped, precision=precision)
    parts = train_here(tmp_path / "parts", *FLAGS, *optimizer)
    assert_same(parts["model"], whole["model"], "model")
    assert_same(parts["last_optimizer_state"], whole["last_optimizer_state"], "optimizer")


@pytest.mark.parametrize(
    "flags, precision",
    [
        (["--optimizer", "sgd", "--lr", 1, "--bf16", "--cpu"], 2**-8),
        (["--optimizer", "damped_adagrad", "--lr", 0.05, "--bf16", "--cpu"], 2**-8),
        ([*ADAGRAD, "--amp", "--cpu"], 1e-6),
    ],
)
def test_columns_are_held_by_other_optimisers_and_in_16_bits(flags, precision, train_here, tmp_path):
    assert_held(train_here(tmp_path, *FLAGS, *flags, "--max-update", 5), precision=precision)


@pytest.mark.parametrize("optimizer", [AVERAGED, ADAGRAD], ids=["averaged", "adagrad"])
def test_two_processes_hold_the_columns_of_one(optimizer, data, train_here, tmp_path):
    one = train_here(tmp_path / "one", *FLAGS, *optimizer)
    half = ["--batch-size", 2, "--batch-size-valid", 1]
    run_two([data, "--save-dir", tmp_path / "two", "--cpu", *FLAGS, *optimizer, *half], tmp_path / "two")
    two = load(tmp_path / "two/checkpoint_last.pt")
    assert_held(two)
    for name, weight in one["model"].items():
        assert (weight - two["model"][name]).abs().max() <= 1e-5, name


def test_memory_is_drawn(data, train_here, tmp_path):
    train_here(tmp_path / "diagonal", *FLAGS, *AVERAGED, "--max-update", 2)
    train_here(tmp_path / "rectifier", *FLAGS, *AVERAGED, "--max-update", 2, "--rnn-cell", "rectifier")
    for command, name, other, told in (
        ("plot_timescales", "diagonal", "rectifier", "longest, tokens"),
        ("plot_spectrum", "rectifier", "diagonal", "most negative real"),
    ):
        module, picture = f"fairseq_plugins.cli.{command}", tmp_path / f"{command}.png"
        paths = {kind: f"{kind}={tmp_path / kind}/checkpoint_last.pt" for kind in (name, other)}
        result = run(module, data, "--path", paths[name], "--plot", picture)
        assert result.returncode == 0, result.stderr[-2000:]
        assert told in result.stdout and picture.stat().st_size > 5000
        found = json.loads(run(module, data, "--path", paths[name], "--json").stdout)
        (layer,) = found["models"][0]["layers"]
        assert found["models"][0]["name"] == name and command in found["command"] and layer["layer"] == 1
        units = layer["values"] if name == "diagonal" else layer["eigenvalues"]
        assert 0 < len(units) <= 12
        refused = run(module, data, "--path", paths[other])
        assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 1
