"""Two processes that share the rows, or the batches of an update, train like one that holds them all."""

import shutil

import fairseq_cli.train
import pytest
import torch
from commands import (
    AVERAGED,
    COMPARABLE,
    NT_ASGD,
    TASK,
    TRAINING_FLAGS,
    assert_same_training,
    load,
    succeed,
    train,
    train_pair,
    train_two,
    updates_of,
)
from paths import PLUGINS
from translation_commands import TRANSFORMER, translator_arguments


def assert_same_but_for_rounding(one, two):
    for name, parameter in one["model"].items():
        assert (parameter - two["model"][name]).abs().max() <= 1e-5, name
    assert one["extra_state"]["val_loss"] == pytest.approx(two["extra_state"]["val_loss"], abs=2e-5)


ROTATED = [*COMPARABLE, "--row-offsets", "random", "--adversarial-epsilon", 0.01]


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("two")
    train_two(data, save_dir, *ROTATED, "--max-epoch", 2)
    return load(save_dir / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def num_updates(two):
    """The update, inside the second epoch, at which runs are stopped."""
    return updates_of(two) * 3 // 4


@pytest.fixture(scope="module")
def stopped(data, num_updates, tmp_path_factory):
    """The folder of a training of two processes that was stopped."""
    save_dir = tmp_path_factory.mktemp("stopped")
    train_two(data, save_dir, *ROTATED, "--max-update", num_updates)
    return save_dir


def test_two_processes_with_rotated_rows_equal_one(data, tmp_path, two):
    train(data, tmp_path, *ROTATED, "--max-epoch", 2)
    assert_same_but_for_rounding(load(tmp_path / "checkpoint_last.pt"), two)


def test_two_processes_save_the_hidden_state_of_one(data, tmp_path):
    weight = COMPARABLE.index("--dropout-weight")  # other cells than the lstm have no such rate
    # its states are no zeros, and have the last first letter, too
    cell = ["--rnn-cell", "smooth-rectifier", "--rectifier-smoothing", 0.01, "--word-skip", "the"]
    flags = [*COMPARABLE[:weight], *COMPARABLE[weight + 2 :], *cell, "--max-update", 5]
    train(data, tmp_path / "one", *flags)
    train_two(data, tmp_path / "two", *flags)
    one, two = (load(tmp_path / name / "checkpoint_last.pt") for name in ("one", "two"))
    assert_same_but_for_rounding(one, two)
    one, two = (state["extra_state"][TASK] for state in (one, two))
    assert one["next_window"] == two["next_window"] and one["hidden_state"].keys() == two["hidden_state"].keys()
    for name, part in one["hidden_state"].items():
        assert part.abs().max() > 0 and (part - two["hidden_state"][name]).abs().max() <= 1e-5


def test_two_processes_resume_bit_for_bit(data, stopped, tmp_path, two):
    saved = load(stopped / "checkpoint_last.pt")["extra_state"][TASK]
    assert len(saved["row_offsets"]) == 4 and any(saved["row_offsets"])
    folder = shutil.copytree(stopped, tmp_path / "resumed")
    train_two(data, folder, *ROTATED, "--max-epoch", 2)
    assert_same_training(load(folder / "checkpoint_last.pt"), two)


def test_one_process_goes_on_where_two_stopped_and_two_where_one_did(data, stopped, num_updates, tmp_path, two):
    shutil.copytree(stopped, tmp_path / "to one")
    train(data, tmp_path / "to one", *ROTATED, "--max-epoch", 2)
    train(data, tmp_path / "to two", *ROTATED, "--max-update", num_updates)
    train_two(data, tmp_path / "to two", *ROTATED, "--max-epoch", 2)
    for name in ("to one", "to two"):
        assert_same_but_for_rounding(load(tmp_path / name / "checkpoint_last.pt"), two)


def test_two_processes_train_a_gate_on_two_models_like_one(data, trained, tmp_path):
    bases = ":".join(str(trained / f"checkpoint_{name}.pt") for name in ("best", "last"))
    flags = [*TRAINING_FLAGS, *NT_ASGD, "--arch", "gated_lm", "--base-model", bases]
    flags += ["--output-gate", "iog-lstm", "--gate-dim", 8]
    flags += ["--gate-dropout", 0, "--balance", 0, "--activation-regularization", 0]
    flags += ["--temporal-activation-regularization", 0, *AVERAGED, "--lr", 1, "--no-epoch-checkpoints"]
    flags += ["--max-update", 16]
    half = ["--batch-size", 2, "--batch-size-valid", 1]
    succeed("fairseq_cli.train", data, "--save-dir", tmp_path / "one", *flags)
    train_pair([data, "--save-dir", tmp_path / "two", *flags, *half], tmp_path / "two")
    one, two = (load(tmp_path / name / "checkpoint_last.pt") for name in ("one", "two"))
    assert_same_but_for_rounding(one, two)
    assert one["model"].keys() > {"decoder.members.1.embedding.weight", "decoder.gate.embedding.weight"}


def test_two_processes_hold_the_columns_of_one_and_share_its_noise(data, tmp_path, run_here):
    flags = [data, "--user-dir", PLUGINS, "--task", "stateful_lm", "--arch", "fpnn_lm", "--embed-dim", 16]
    flags += ["--hidden-sizes", 16, "--column-norm", 2, "--dropout-output", 0, "--tokens-per-sample", 20, "--cpu"]
    flags += ["--criterion", "noise_contrastive", "--noise-sharing", "batch", "--normaliser", "learned"]
    flags += ["--sparse-gradients", "off", "--optimizer", "sgd", "--lr", 2, "--clip-norm", 0.25, "--max-epoch", 1]
    flags += ["--batch-size-valid", 1, "--no-epoch-checkpoints"]
    run_here(fairseq_cli.train, *flags, "--batch-size", 4, "--save-dir", tmp_path / "one")
    train_pair([*flags, "--batch-size", 2, "--save-dir", tmp_path / "two"], tmp_path / "two")
    one, two = (load(tmp_path / name / "checkpoint_last.pt") for name in ("one", "two"))
    for part in ("model", "criterion"):
        for name, weight in one[part].items():
            torch.testing.assert_close(two[part][name], weight, rtol=0, atol=1e-5, msg=name)


def test_two_processes_train_a_translator_and_score_it_like_one(pair_data, tmp_path, run_here):
    one, two = (tmp_path / name for name in ("one", "two"))
    # adam would follow the rounding errors where a gradient is zero, as those of the keys' biases are
    flags = ["--dropout", 0, "--optimizer", "sgd", "--lr", 0.5, "--batch-size", 8, "--max-epoch", 1]
    flags += ["--copying", "attention", "--task", "scored_translation", "--eval-scorer", "chrf"]
    flags += ["--eval-scorer-args", '{"beam": 2, "min_len": 4, "max_len_b": 12}', "--batch-size-valid", 7]
    flags += ["--best-checkpoint-metric", "chrf", "--maximize-best-checkpoint-metric"]
    run_here(fairseq_cli.train, *translator_arguments(pair_data, one, *flags, "--update-freq", 2, **TRANSFORMER))
    train_pair(translator_arguments(pair_data, two, *flags, **TRANSFORMER), two)
    one, two = (load(directory / "checkpoint_last.pt") for directory in (one, two))
    assert updates_of(one) == updates_of(two) == 25
    assert one["extra_state"]["val_loss"] > 1
    assert_same_but_for_rounding(one, two)
