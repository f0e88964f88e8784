"""Runs resume from the right checkpoint, and know when they have finished. Weights: integration/test_resume.py."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

import fairseq_plugins  # noqa: F401
from fairseq_plugins.fairseq_patches.resume import (
    PATIENCE,
    _check_task,
    _settle_start_and_load,
    _stop_if_finished,
    restored_checkpoint,
)
from fairseq_plugins.options import UserError


def test_batches_are_cut_every_epoch_unlike_by_fairseq_alone():
    seen, cfg = [], OmegaConf.structured(FairseqConfig)
    assert cfg.dataset.update_epoch_batch_itr is False
    distributed_utils.call_main(cfg, lambda cfg: seen.append(cfg.dataset.update_epoch_batch_itr))
    assert seen == [True]


@pytest.fixture
def saved():
    """Meters of a run as in checkpoints; those of the process are reset."""
    metrics.reset()
    metrics.log_start_time("wall", priority=790, round=0)
    state = metrics.state_dict()
    yield state
    metrics.reset()


def seconds_after(load, state):
    load(state)
    time.sleep(0.01)
    return metrics.get_meter("default", "wall").elapsed_time


def test_the_clock_of_loaded_meters_runs_from_then_on_unlike_by_fairseq_alone(saved):
    assert seconds_after(metrics.load_state_dict.__wrapped__, saved) == 0
    assert 0.01 <= seconds_after(metrics.load_state_dict, saved) < 10


def test_meters_without_a_clock_are_loaded(saved):
    metrics.reset()
    metrics.load_state_dict(metrics.state_dict())
    assert metrics.get_meter("default", "wall") is None


@pytest.fixture
def start_again():
    """``start_again(**flags)``: the number of epochs trained after three of ten, two of which were no better."""

    def start(*, num_updates=300, saved=True, **flags):
        checkpoint = dict(save_dir="runs", patience=-1, reset_meters=False)
        checkpoint.update({name: value for name, value in flags.items() if name in checkpoint})
        optimization = SimpleNamespace(max_epoch=10, max_update=flags.get("max_update", 0))
        trainer = SimpleNamespace(cfg=SimpleNamespace(optimization=optimization), get_num_updates=lambda: num_updates)
        state = {PATIENCE: {"best": 1.0, "num_runs": 2}} if saved else None
        iterator = SimpleNamespace(next_epoch_idx=4)
        found = _stop_if_finished(lambda *args: (state, iterator), SimpleNamespace(**checkpoint), trainer)
        assert found == (state, iterator)
        max_epoch = optimization.max_epoch or float("inf")  # as fairseq reads it
        return max(0, max_epoch - iterator.next_epoch_idx + 1)

    return start


FINISHED = [{"max_update": 300}, {"max_update": 200}, {"patience": 2}, {"patience": 1}]
UNFINISHED = [
    *({}, {"max_update": 301}, {"patience": 3}, {"patience": 1, "reset_meters": True}),
    {"patience": 1, "num_updates": 0},
    {"patience": 1, "max_update": 1, "num_updates": 0, "saved": False},
]


@pytest.mark.parametrize("flags, num_epochs", [*((one, 0) for one in FINISHED), *((one, 7) for one in UNFINISHED)])
def test_a_finished_training_alone_stays_as_it_is(flags, num_epochs, start_again, caplog):
    with caplog.at_level("INFO"):
        assert start_again(**flags) == num_epochs
    told = "the run in runs is finished" in caplog.text and f"is {[*flags.values()][0]};" in caplog.text
    assert told == (num_epochs == 0)


@pytest.mark.parametrize(
    "saved, position, flags, is_refused",
    [
        ({"StatefulLanguageModelingTask": {}}, 3, {}, True),
        ({"StatefulLanguageModelingTask": {}}, 0, {}, False),  # at the end of an epoch
        ({"StatefulLanguageModelingTask": {}}, 3, {"reset_dataloader": True}, False),
        ({"StatefulLanguageModelingTask": {}}, 3, {"finetune_from_model": "a.pt"}, False),
        ({}, 3, {}, False),
    ],
)
def test_inside_an_epoch_of_another_task_no_run_is_resumed(saved, position, flags, is_refused):
    """fairseq counts batches, and those of a stream are others."""
    checkpoint = SimpleNamespace(**{"reset_dataloader": False, "finetune_from_model": None, **flags})
    trainer = SimpleNamespace(cfg=SimpleNamespace(checkpoint=checkpoint), task=TranslationTask.__new__(TranslationTask))
    state = {**saved, "train_iterator": {"iterations_in_epoch": position}}
    if is_refused:
        with pytest.raises(UserError, match="^a.pt stopped inside an epoch of another --task"):
            _check_task(lambda *_: state, trainer, "a.pt")
    else:
        assert _check_task(lambda *_: state, trainer, "a.pt") is state


@pytest.mark.parametrize(
    "flags, files, expected",
    [
        ({}, [], None),
        ({}, ["checkpoint_last.pt"], "checkpoint_last.pt"),
        ({}, ["checkpoint_best.pt"], "checkpoint_best.pt"),
        ({"restore_file": "other.pt"}, ["checkpoint_last.pt", "other.pt"], "other.pt"),
        ({"restore_file": "other.pt"}, ["checkpoint_last.pt"], None),
        ({"finetune_from_model": "other.pt"}, ["other.pt"], "other.pt"),
        ({"finetune_from_model": "other.pt"}, ["other.pt", "checkpoint_last.pt"], "checkpoint_last.pt"),
        ({"save_dir": None}, ["checkpoint_last.pt"], None),
    ],
)
def test_the_checkpoint_that_a_run_will_load_is_known(flags, files, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path(name).touch()
    found = restored_checkpoint(SimpleNamespace(**{"save_dir": ".", "restore_file": "checkpoint_last.pt", **flags}))
    assert found == (None if expected is None else Path(expected))


LAST = "checkpoint_last.pt"
NO_RESETS = dict.fromkeys(("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader"), False)


@pytest.fixture
def resume(tmp_path, monkeypatch):
    """``resume(flags, files, ...)``: the ``--restore-file`` with which fairseq is asked to load, if these files exist.

    A later file is newer.
    """
    monkeypatch.chdir(tmp_path)

    def load(flags, files=(), *, rank=0, suffix=""):
        for age, file in enumerate(map(Path, files)):
            file.parent.mkdir(exist_ok=True)
            file.touch()
            os.utime(file, (age, age))
        others = {"save_dir": "runs", "restore_file": LAST, "continue_once": None, "finetune_from_model": None}
        cfg = SimpleNamespace(**{**others, **NO_RESETS, "no_save": False, **flags})
        trainer = SimpleNamespace(data_parallel_rank=rank, checkpoint_suffix=suffix)
        loaded = _settle_start_and_load(lambda *args, **options: (args, options), cfg, trainer, x=1)
        assert loaded == ((cfg, trainer), {"x": 1})
        return cfg.restore_file

    return load


BEST, FIFTH = "runs/checkpoint_best.pt", "runs/checkpoint5.pt"


@pytest.mark.parametrize(
    "flags, files, restored",
    [
        ({}, [], LAST),
        ({}, [f"runs/{LAST}"], LAST),
        ({}, [BEST, f"runs/{LAST}", FIFTH], LAST),
        ({}, [BEST, FIFTH], FIFTH),
        ({}, [FIFTH, BEST], BEST),
        ({}, ["runs/checkpoint_other.pt", "runs/checkpoint5.pt.tmp"], LAST),
        ({"no_save": True}, [BEST], LAST),
        ({"restore_file": ""}, [BEST], ""),
        ({"restore_file": "other/model.pt"}, ["other/model.pt", BEST], "other/model.pt"),
        ({"continue_once": "other/model.pt"}, ["other/model.pt"], LAST),
        ({"continue_once": "other/model.pt"}, [f"runs/{LAST}"], LAST),  # once it has begun, the flag is ignored
        ({"finetune_from_model": "other/model.pt"}, ["other/model.pt"], LAST),
        ({"finetune_from_model": "other/model.pt"}, [f"runs/{LAST}"], LAST),
    ],
    ids=str,
)
def test_the_last_checkpoint_is_loaded_or_the_one_that_a_flag_names_or_the_newest(flags, files, restored, resume):
    assert resume(flags, files) == restored


@pytest.mark.parametrize("flag", ["restore_file", "continue_once", "finetune_from_model"])
def test_what_is_not_there_is_refused(flag, resume):
    name = f"--{flag.replace('_', '-')}"
    with pytest.raises(ValueError) as refused:
        resume({flag: "checkpoint_best.pt"}, [BEST])
    assert str(refused.value) == (
        f"{name} checkpoint_best.pt does not exist: give the path of a checkpoint, such as runs/checkpoint_best.pt, or "
        f"leave {name} out to resume from runs/checkpoint_last.pt, or to start anew if that does not exist"
    )
    with pytest.raises(ValueError, match=f"{name} . is no file: give the path of a checkpoint, such as ./check"):
        resume({flag: "."})
    if flag != "restore_file":
        with pytest.raises(ValueError, match=f"{BEST} is there and no {LAST}: give another .* leave {name} out to"):
            resume({flag: BEST})


def test_what_a_start_resets_anyway_is_not_reset(resume):
    with pytest.raises(
        ValueError, match="--finetune-from-model .* leave out --reset-lr-scheduler, or leave out --fine"
    ):
        resume({"finetune_from_model": BEST, "reset_lr_scheduler": True}, [f"runs/{LAST}"])
    assert resume({"reset_lr_scheduler": True}, [f"runs/{LAST}"]) == LAST


def test_processes_that_hold_parts_look_for_theirs_and_those_that_are_sent_it_need_none(resume):
    assert resume({"restore_file": "other/model.pt"}, rank=1) == "other/model.pt"
    named, parts = {"restore_file": "other/model.pt"}, {"suffix": "-shard1"}
    with pytest.raises(ValueError, match="--restore-file other/model-shard1.pt does not exist"):
        resume(named, ["other/model.pt"], **parts)
    assert resume(named, ["other/model-shard1.pt"], **parts) == "other/model.pt"
    assert resume({}, ["runs/checkpoint2-shard1.pt", "runs/checkpoint3-shard0.pt"], **parts) == "runs/checkpoint2.pt"
    assert resume({"continue_once": "other/begun.pt"}, ["runs/checkpoint_last-shard1.pt"], **parts) == LAST
