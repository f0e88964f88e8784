"""Steps of gpu_report that train, on the CPU at toy size."""

import json
from dataclasses import replace

import pytest
import torch

from fairseq_plugins.benchmarks.device import speed
from fairseq_plugins.cli.gpu_report import GpuReport
from fairseq_plugins.recipes.language_models import SPEED_PRESETS

pytestmark = pytest.mark.slow


@pytest.fixture
def out(tmp_path):
    return tmp_path / "a folder"


def report(step, out, *flags):
    GpuReport().main([*step.split(), "--out", str(out), "--cpu", *flags])


def items(out, name):
    return json.loads((out / f"{name}.json").read_text())["items"]


def test_models(out):
    report("models", out, "--only", "ptb: fairseq lstm_lm", "ptb: mmlstm_lm_mos_ptb")
    found = items(out, "models")
    assert list(found) == ["ptb: fairseq lstm_lm, round 1", "ptb: mmlstm_lm_mos_ptb, round 1"]
    for figures in found.values():
        assert figures["updates_per_second"] > 0 and figures["words_per_second"] > 0 and figures["peak_mib"] > 0
    num_left = sum(len(SPEED_PRESETS[corpus].systems) for corpus in ("ptb", "wt2")) - len(found)
    assert f"{num_left} items are not measured yet" in (out / "models.md").read_text()


def test_translation(out, monkeypatch):
    systems = {name: speed.TRANSLATORS.systems[name] for name in ("host", "doc")}
    monkeypatch.setattr(speed, "TRANSLATORS", replace(speed.TRANSLATORS, systems=systems))
    report("translation", out, "--only", "decoding")
    found = items(out, "translation")
    assert list(found["decoding"]["sentences_per_second"]) == ["fairseq lstm", "lstm_encdec_doc"]


def test_a_training_stops_and_goes_on(out):
    checkpoint = out / "checkpoints/lstm_lm_awd_ptb/checkpoint_last.pt"
    num_updates = []
    for _ in range(2):
        report("train lstm_lm_awd_ptb 0.01", out)
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        num_updates.append(state["optimizer_history"][-1]["num_updates"])
        found = json.loads((out / "train_lstm_lm_awd_ptb.json").read_text())
        assert 60 * found["minutes"] == pytest.approx(state["extra_state"]["previous_training_time"])
    assert 0 < num_updates[0] < num_updates[1] and found["minutes"] >= 0.02
    assert all(epoch["valid_perplexity"] > 1 for epoch in found["epochs"].values())
    assert all(epoch["words_per_second"] > 0 for epoch in found["epochs"].values())
    assert "minutes so far" in (out / "train_lstm_lm_awd_ptb.md").read_text()


def test_trainings_of_the_check(out):
    report("check", out, "--only", "lstm_lm_doc, bf16", "transformer_doc, float32")
    for figures in items(out, "check").values():
        assert figures["last_loss"] < figures["first_loss"] and figures["updates"] == 10
