"""Flags that name a checkpoint which is not there."""

from types import SimpleNamespace

import pytest

from fairseq_plugins.host.missing_checkpoint import _check_named

LAST = "checkpoint_last.pt"


@pytest.fixture
def go_on(tmp_path, monkeypatch):
    """``go_on(flags, files, ...)``: whether the host is asked to load with these flags, where there are these files."""
    monkeypatch.chdir(tmp_path)

    def load(flags, files=(), *, rank=0, suffix=""):
        for file in files:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
        others = {"save_dir": "runs", "restore_file": LAST, "continue_once": None, "finetune_from_model": None}
        cfg = SimpleNamespace(**{**others, **flags})
        trainer = SimpleNamespace(data_parallel_rank=rank, checkpoint_suffix=suffix)
        return _check_named(lambda *args, **options: (args, options) == ((cfg, trainer), {"x": 1}), cfg, trainer, x=1)

    return load


@pytest.mark.parametrize(
    "flags, files",
    [
        ({}, []),
        ({}, [f"runs/{LAST}"]),
        ({"restore_file": "other/model.pt"}, ["other/model.pt"]),
        ({"continue_once": "other/model.pt"}, ["other/model.pt"]),
        ({"continue_once": "other/model.pt"}, [f"runs/{LAST}"]),  # once it has begun, the flag is not heeded
        ({"finetune_from_model": "other/model.pt"}, ["other/model.pt"]),
        ({"finetune_from_model": "other/model.pt"}, [f"runs/{LAST}"]),
    ],
    ids=str,
)
def test_what_is_there_is_loaded(flags, files, go_on):
    assert go_on(flags, files)


@pytest.mark.parametrize("flag", ["restore_file", "continue_once", "finetune_from_model"])
def test_what_is_not_there_is_refused(flag, go_on):
    name = f"--{flag.replace('_', '-')}"
    with pytest.raises(ValueError) as refused:
        go_on({flag: "checkpoint_best.pt"}, ["runs/checkpoint_best.pt"])
    assert str(refused.value) == (
        f"{name} checkpoint_best.pt does not exist: give the path of a checkpoint, such as runs/checkpoint_best.pt, or "
        f"leave {name} out to go on from runs/checkpoint_last.pt, or to begin where that does not exist"
    )
    with pytest.raises(ValueError, match=f"{name} runs is no file: give the path of a checkpoint"):
        go_on({flag: "runs"})


def test_processes_that_hold_parts_look_for_theirs(go_on):
    named = {"restore_file": "other/model.pt"}
    with pytest.raises(ValueError, match="--restore-file other/model-shard1.pt does not exist"):
        go_on(named, ["other/model.pt"], suffix="-shard1")
    assert go_on(named, ["other/model-shard1.pt"], suffix="-shard1")
    assert go_on({"continue_once": "other/begun.pt"}, ["runs/checkpoint_last-shard1.pt"], suffix="-shard1")


def test_processes_that_are_sent_it_need_none(go_on):
    assert go_on({"restore_file": "other/model.pt"}, rank=1)
