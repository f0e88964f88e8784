"""State after a run has resumed. That it is the same bit for bit is tested with the commands."""

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
from fairseq_plugins.fairseq_patches.resume import PATIENCE, _check_task, _stop_if_finished, restored_checkpoint
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


@pytest.mark.parametrize("flags", [{"max_update": 300}, {"max_update": 200}, {"patience": 2}, {"patience": 1}])
def test_a_finished_training_stays_as_it_is(flags, start_again, caplog):
    with caplog.at_level("INFO"):
        assert start_again(**flags) == 0
    assert "the run in runs is finished" in caplog.text and f"is {[*flags.values()][0]};" in caplog.text


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"max_update": 301},
        {"patience": 3},
        {"patience": 1, "reset_meters": True},
        {"patience": 1, "num_updates": 0},
        {"patience": 1, "max_update": 1, "num_updates": 0, "saved": False},
    ],
    ids=str,
)
def test_what_is_not_finished_is_trained_on(flags, start_again):
    assert start_again(**flags) == 7


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
