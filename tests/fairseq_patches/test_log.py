"""Output of fairseq's programs: a short log, and the remaining time."""

import inspect
import json
import os
import re
import shutil
import subprocess
import time

import fairseq_cli.train
import pytest
from fairseq.logging.progress_bar import JsonProgressBar
from omegaconf import OmegaConf
from paths import SMALL_MODELS
from warm_process import PYTHON

import fairseq_plugins
from fairseq_plugins.fairseq_patches import log

USER_DIR = f"--user-dir={fairseq_plugins.__path__[0]}"
LM = SMALL_MODELS / "data/lm"


# a log, in a process of its own, where warnings are those of the first time


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The folder of a training, and what it has printed."""
    folder = tmp_path_factory.mktemp("log")
    shutil.copytree(LM, folder / "lm")
    (folder / "save").mkdir()
    (folder / "save/config.yaml.tmp").touch()  # as of a run that was killed
    flags = ["--task=stateful_lm", "--arch=lstm_lm_mos", "--embed-dim=8", "--hidden-sizes=8", "--experts-per-layer=0 2"]
    flags += ["--criterion=regularized_cross_entropy", "--optimizer=sgd", "--lr=0.5", "--batch-size=2", "--seed=7"]
    flags += ["--output-precision=float32", "--max-epoch=2", "--log-format=json", "--log-interval=1", "--save-dir=save"]
    words = [PYTHON, "-m", "fairseq_cli.train", "lm", USER_DIR, *flags]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, done.stderr


@pytest.mark.slow
def test_a_log_begins_with_readable_lines(training):
    _, printed, warned = training
    assert warned == ""
    lines = [line.split(" | ", 3)[3] for line in printed.splitlines()]
    assert lines[:5] == [
        "arch lstm_lm_mos, criterion regularized_cross_entropy, seed 7",
        "task stateful_lm, data lm, train on train, validate on valid",
        "optimizer sgd, lr 0.5, lr-scheduler fixed, clip-norm 0",
        "batches of at most 2 sentences, until epoch 2",
        "checkpoints in save, best by loss; all flags in save/config.yaml",
    ]
    assert {"output precision float32", "matrix products of float32 in TF32 on GPUs"} <= {*lines}
    assert any(line.startswith("num. shared model params: ") for line in lines)
    assert max(map(len, lines)) < 500 and lines.index("begin training epoch 1") < 20
    assert "tensorboardX" not in printed


@pytest.mark.slow
def test_all_flags_and_modules_are_in_a_file(training):
    folder, *_ = training
    text = (folder / "save/config.yaml").read_text()
    flags = OmegaConf.create(text)
    assert flags.optimization.lr == [0.5] and flags.model.experts_per_layer == "0 2" and "lr" not in flags.model
    assert "# RecurrentLanguageModel(\n#   (decoder)" in text
    assert [file.name for file in folder.glob("save/*config*")] == ["config.yaml"]


@pytest.mark.slow
def test_lines_in_json_have_the_remaining_time(training):
    _, printed, _ = training
    inner = [json.loads(line) for line in re.findall(r"\| train_inner \| (.*)", printed)]
    epochs = [json.loads(line) for line in re.findall(r"\| train \| (.*)", printed)]
    times = [one["eta"] for one in inner] + [one["train_eta"] for one in epochs]
    assert len(times) > 3 and all(re.fullmatch(r"\d+:\d\d:\d\d", one) for one in times)
    assert inner[-1]["eta"] == "0:00:00"


def test_fairseq_alone_logs_all_flags():
    assert "logger.info(cfg)" in inspect.getsource(fairseq_cli.train.main)


# the remaining time


@pytest.mark.parametrize(
    "max_epoch, max_update, eta",
    [
        *((0, 0, None), (3, 0, "2:05:00"), (200, 0, "166:15:00")),
        *((0, 30, "0:37:30"), (3, 30, "0:37:30"), (2, 99, "1:15:00")),
    ],
)
def test_the_pace_so_far_is_that_of_the_rest(max_epoch, max_update, eta, monkeypatch):
    """10 updates, from the third of 24 in an epoch, took 1,250 seconds."""
    logged, clock = [], iter([100.0, 1350.0])
    monkeypatch.setattr(log, "_start", [])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    updates = type("Updates", (list,), {"n": 2})(range(24))
    bar = JsonProgressBar(updates, epoch=1)
    bar.update_config({"optimization": {"max_epoch": max_epoch, "max_update": max_update}})
    updates.n = 12
    log._log_with_eta(lambda bar, stats, **_: logged.append(stats), bar, {"loss": 1}, tag="train_inner", step=12)
    assert logged[0].get("eta") == eta
