"""Importing the package patches fairseq and registers everything, once."""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils, options, trainer, utils
from fairseq.data import data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import AMPOptimizer
from fairseq.trainer import Trainer
from forks import in_fork, program
from paths import ROOT, SMALL_MODELS

import fairseq_plugins
from fairseq_plugins import fairseq_patches
from fairseq_plugins.fairseq_patches import apply_patches, wrap

SOURCES = Path(fairseq_patches.__file__).parent
PATCHED = [
    *((checkpoint_utils, "load_checkpoint_to_cpu"), (checkpoint_utils, "load_checkpoint")),
    *((distributed_utils, "broadcast_object"), (distributed_utils, "call_main"), (data_utils, "batch_by_size")),
    *((Trainer, "load_checkpoint"), (PathManager, "copy"), (AMPOptimizer, "step")),
    *((Trainer, "train_step"), (Trainer, "clip_grad_norm"), (trainer, "NanDetector"), (options, "parse_args_and_arch")),
]


def test_patching_twice_wraps_once():
    before = [getattr(owner, name) for owner, name in PATCHED]
    assert all(hasattr(function, "__wrapped__") for function in before)
    apply_patches()
    assert [getattr(owner, name) for owner, name in PATCHED] == before


def test_user_dir_after_import_registers_nothing_twice():
    registered = dict(ARCH_MODEL_REGISTRY)
    utils.import_user_module(Namespace(user_dir=fairseq_plugins.__path__[0]))
    assert dict(ARCH_MODEL_REGISTRY) == registered


def test_the_tests_that_patches_name_exist():
    named = [
        f"{file.name}: {name}"
        for file in SOURCES.glob("*.py")
        for name in re.findall("``(test_[a-z0-9_]+)``", file.read_text())
    ]
    tests = "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))
    assert len(named) > 30
    assert [one for one in named if f"def {one.partition(': ')[2]}(" not in tests] == []


def add_one(function, *args, **kwargs):
    return function(*args, **kwargs) + 1


def double(function, *args, **kwargs):
    return 2 * function(*args, **kwargs)


class Owner:
    @staticmethod
    def static(x):
        """What it does."""
        return x

    def method(self, x, *, y=0):
        return x + y


def test_methods_and_static_methods_stay_what_they_are():
    wrap(Owner, "static", add_one)
    wrap(Owner, "method", add_one)
    assert Owner.static(1) == 2 and Owner().static(1) == 2
    assert Owner().method(1, y=5) == 7
    assert Owner.static.__doc__ == "What it does."


def test_the_same_wrapper_wraps_once_and_another_one_besides():
    owner = SimpleNamespace(function=lambda x: x)
    original = owner.function
    wrap(owner, "function", add_one)
    wrap(owner, "function", double)
    both = owner.function
    wrap(owner, "function", add_one)
    assert owner.function is both and both(1) == 4
    assert unwrap(both) is original


# trainings in processes of their own: without the package, with all patches, with the minimal ones

DATA = SMALL_MODELS / "data"
TRAININGS = """
import json, sys
import fairseq_cli.train
from fairseq import checkpoint_utils
for words in json.loads(sys.argv[1]):
    sys.argv = ["fairseq-train", *words]
    fairseq_cli.train.cli_main()
print("patched:", hasattr(checkpoint_utils.load_checkpoint, "__wrapped__"))
"""
SIZES = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in ("embed-dim=8", "layers=1")]
HEADS = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in ("ffn-embed-dim=16", "attention-heads=2")]
HIDDEN = ["--encoder-hidden-size=8", "--decoder-hidden-size=8", "--decoder-out-embed-dim=8"]
FAIRSEQ_MODELS = {"transformer": [*SIZES, *HEADS], "lstm": [*SIZES, *HIDDEN]}
PLUGINS = f"--user-dir={fairseq_plugins.__path__[0]}"
OPTIMIZER = ["--lr=0.01", "--clip-norm=1", "--log-format=json", "--log-interval=1", "--cpu", "--num-workers=0"]
# Without the patches a thread that fills the buffer may abort the process at its end.
OPTIMIZER += ["--no-epoch-checkpoints", "--data-buffer-size=0"]


def train(trainings, folder, **environment):
    """The output of a process that runs ``fairseq-train`` with each list of flags, without the patches."""
    command = [sys.executable, "-c", TRAININGS, json.dumps(trainings)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "patched: False" in done.stdout
    return done.stdout + done.stderr


def train_patched(trainings, folder):
    """The output of a fork of this process, which has all patches, that does the same."""

    def work():
        for words in trainings:
            program(["fairseq_cli.train", *words])()

    assert hasattr(checkpoint_utils.load_checkpoint, "__wrapped__")
    ended = in_fork(work, folder=folder, seconds=300)
    assert ended.status == 0, ended.err[-3000:]
    return ended.out + ended.err


def train_fairseq_models(run, folder, *flags):
    """Losses in the log, and checkpoints, of an epoch in which fairseq drops no sentence."""
    folder.mkdir()
    shutil.copytree(DATA / "translation", folder / "data")
    flags = ["--task=translation", *flags, "--optimizer=adam", *OPTIMIZER, "--max-epoch=1"]
    flags += ["--batch-size=7", "--required-batch-size-multiple=1"]
    trainings = [
        ["data", f"--arch={arch}", *sizes, f"--save-dir={arch}", *flags] for arch, sizes in FAIRSEQ_MODELS.items()
    ]
    log = run(trainings, folder)
    states = [torch.load(folder / arch / "checkpoint_last.pt") for arch in FAIRSEQ_MODELS]
    return re.findall(r'"(?:train_|valid_)?(?:loss|gnorm)": "[^"]+"', log), states


@pytest.mark.slow
def test_models_of_fairseq_train_as_without_the_package(tmp_path):
    losses, states = train_fairseq_models(train, tmp_path / "alone")
    ours, our_states = train_fairseq_models(train_patched, tmp_path / "patched", PLUGINS)
    assert len(losses) > 20 and ours == losses
    for state, other in zip(states, our_states):
        assert state["extra_state"]["val_loss"] == other["extra_state"]["val_loss"]
        assert state["model"].keys() == other["model"].keys()
        assert all(torch.equal(weight, other["model"][name]) for name, weight in state["model"].items())


@pytest.mark.slow
def test_minimal_patches_are_enough_for_the_models_of_the_package(tmp_path):
    shutil.copytree(DATA, tmp_path / "data")
    small = ["--embed-dim=8", "--hidden-sizes=8", "--criterion=regularized_cross_entropy"]
    lm = ["data/lm", "--task=stateful_lm", "--arch=lstm_lm_mos", "--batch-size=2", "--optimizer=sgd"]
    lm += ["--bf16", "--save-dir=lm", "--experts-per-layer=0 2"]
    pairs = ["data/translation", "--arch=lstm_encdec_mos", "--batch-size=5", "--optimizer=sgd"]
    pairs += ["--num-batch-buckets=3", "--max-tokens=60", "--save-dir=pairs", "--experts-per-layer=0 0 2"]
    more = [*small, *OPTIMIZER, PLUGINS]
    trainings = [[*words, *more, f"--max-update={n}"] for words in (lm, pairs) for n in (1, 2)]
    train(trainings, tmp_path, FAIRSEQ_PLUGINS_PATCHES="minimal")
    for name in ("lm", "pairs"):  # each was resumed once
        assert torch.load(tmp_path / name / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 2


@pytest.mark.slow
def test_minimal_patches_evaluate_no_text_of_a_checkpoint(tmp_path):
    code = "import fairseq_plugins; from fairseq.utils import eval_str_list; eval_str_list('[os.mkdir(\"canary\")]')"
    environment = {**os.environ, "FAIRSEQ_PLUGINS_PATCHES": "minimal", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "is no literal" in done.stderr and not (tmp_path / "canary").exists()


def test_another_value_of_the_switch_is_refused(monkeypatch):
    monkeypatch.setenv("FAIRSEQ_PLUGINS_PATCHES", "none")
    with pytest.raises(ValueError, match="FAIRSEQ_PLUGINS_PATCHES=none in the environment: give all or minimal"):
        apply_patches()
