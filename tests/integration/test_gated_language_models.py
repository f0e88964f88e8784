"""Gates on trained language models by the real commands: trained, evaluated, looked into."""

import json
import re
import shutil
from collections import Counter

import fairseq_cli.generate
import fairseq_cli.train
import pytest
import torch
from commands import load, succeed, validated
from paths import PLUGINS

FLAGS = [
    *("--arch", "gated_lm", "--gate-dim", 8, "--task", "stateful_lm", "--batch-size", 4, "--batch-size-valid", 2),
    *("--tokens-per-sample", 20, "--criterion", "regularized_cross_entropy", "--sentence-avg", "--clip-norm", 1),
    *("--optimizer", "l2_adam", "--lr", "0.01,0.007", "--lr-scheduler", "fixed", "--weight-decay", 1e-6),
    *("--max-epoch", 2, "--log-format", "simple", "--log-interval", 10),
]


@pytest.fixture
def train_gate(data, run_here):
    """``train_gate(base_model, save_dir, *flags)``: the log of a training in this process."""
    return lambda base_model, save_dir, *flags: run_here(
        fairseq_cli.train, data, "--base-model", base_model, "--save-dir", save_dir, *FLAGS, *flags
    )


@pytest.fixture(scope="module")
def gated(trained, data, tmp_path_factory):
    """A save directory with train.log; the base model's file was removed after the training."""
    folder = tmp_path_factory.mktemp("gated")
    base = shutil.copy(trained / "checkpoint_best.pt", folder / "base.pt")
    flags = ["--base-model", base, "--save-dir", folder / "gate", "--user-dir", PLUGINS, "--cpu", *FLAGS]
    result = succeed("fairseq_cli.train", data, *flags)
    (folder / "base.pt").unlink()
    (folder / "gate/train.log").write_text(result.stdout + result.stderr)
    return folder / "gate"


def test_the_checkpoint_is_whole_and_the_base_as_it_was(gated, trained, data, evaluate_here):
    checkpoint = gated / "checkpoint_best.pt"
    saved, base = load(checkpoint), load(trained / "checkpoint_best.pt")
    for name, value in base["model"].items():
        if "output.gate" not in name:
            assert (saved["model"][name.replace("decoder.", "decoder.members.0.")] == value).all(), name
    learned = [name for name in saved["model"] if name.startswith("decoder.gate.") and "gate_name" not in name]
    assert len(saved["last_optimizer_state"]["state"]) == len(learned) == 3
    log = (gated / "train.log").read_text()
    figures = evaluate_here(data, "--path", checkpoint, "--split", "valid", "--rows", 2)
    assert figures["nll"] == pytest.approx(min(validated(log, "loss")), abs=1e-5)


def test_16_bits_and_fairseqs_task_go_with_a_gate(trained, data, tmp_path, train_gate, evaluate_here):
    base = trained / "checkpoint_best.pt"
    for num_updates in (3, 5):  # the second is resumed
        train_gate(base, tmp_path / "bf16", "--bf16", "--max-update", num_updates)
    assert 1 < evaluate_here(data, "--path", tmp_path / "bf16/checkpoint_last.pt")["perplexity"] < 2000
    flags = ["--task", "language_modeling", "--sample-break-mode", "eos", "--tokens-per-sample", 64]
    train_gate(base, tmp_path / "stateless", *flags, "--criterion", "cross_entropy", "--max-update", 2)
    assert 1 < evaluate_here(data, "--path", tmp_path / "stateless/checkpoint_last.pt")["perplexity"] < 2000


# what reads language models


def test_commands_that_look_into_language_models_read_gated_ones(gated, trained, data, printed_by):
    checkpoint, base = gated / "checkpoint_best.pt", trained / "checkpoint_best.pt"
    assert "| " in printed_by("analyze frequency", data, "--path", f"base={base}", f"gated={checkpoint}")
    figures = json.loads(printed_by("analyze rank", data, "--path", checkpoint, "--positions", 50, "--json"))
    assert 0 < figures["rank"] <= 50
    names = ["--path", f"gated={checkpoint}"]
    assert "gated" in printed_by("analyze masking", data, *names, "--probabilities", 0.5, "--runs", 1, "--rows", 2)
    layers = json.loads(printed_by("analyze correlation", data, *names, "--json"))["layers"]
    assert [layer["width"] for layer in layers] == [16, 16]


def test_fairseq_generates_text_with_a_gate_of_ones_as_with_its_base(gated, trained, data, tmp_path, run_here):
    flags = ["--task", "language_modeling", "--sample-break-mode", "eos", "--gen-subset", "test", "--beam", 2]
    flags += ["--prefix-size", 2, "--max-len-b", 5, "--batch-size", 4]
    saturated = load(gated / "checkpoint_best.pt")
    saturated["model"]["decoder.gate.linear.bias"].fill_(100)
    torch.save(saturated, tmp_path / "saturated.pt")
    found = []
    for path in (trained / "checkpoint_best.pt", tmp_path / "saturated.pt"):
        output = run_here(fairseq_cli.generate, data, "--path", path, *flags)
        found.append(re.findall(r"^H-\d+\t.*", output, re.M))
    assert found[0] == found[1] and len(found[0]) > 10 and len({line.partition("\t")[2] for line in found[0]}) > 5


def test_gate_words_are_shown_with_their_counts(gated, text, data, printed_by):
    words = (text / "train.txt").read_text().split()
    flags = ["--words", words[0], "</s>", "--min-count", 20, "--num", 3]
    shown = printed_by("analyze gate-words", data, "--path", gated / "checkpoint_best.pt", *flags)
    found = json.loads(printed_by("analyze gate-words", data, "--path", gated / "checkpoint_best.pt", *flags, "--json"))
    assert {"date", "code", "machine"} < set(found) and "analyze gate-words" in found["command"]
    assert list(found["words"]) == [words[0], "</s>"]
    counts = {**Counter(words), "</s>": len((text / "train.txt").read_text().splitlines())}
    for word, raised in found["words"].items():
        assert len(raised) == 3 and all(one["count"] >= 20 and 0 < one["gate"] < 1 for one in raised)
        for one in raised:
            assert one["count"] == counts[one["word"]]
            row = rf"\| {re.escape(word)} +\| +{re.escape(one['word'])} \| +{one['gate']:.4f} \| +{one['count']:,} \|"
            assert re.search(row, shown)
