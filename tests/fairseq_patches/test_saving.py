"""Two runs in one directory, copies, crashes. Runs that are killed are tested with the commands."""

import errno
import fcntl
import inspect
import multiprocessing
import os
import shutil
import signal
import socket
import time
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager

from fairseq_plugins.fairseq_patches import saving
from fairseq_plugins.fairseq_patches.saving import ASIDE, LOCK_FILE, OWNER_FILE, _check_named, keep_lock, lock_save_dir


@pytest.fixture
def hold():
    """``hold(save_dir)``: another process that holds the lock, until it is killed or ``then`` returns."""
    context, processes = multiprocessing.get_context("fork"), []

    def run(save_dir, then, connection):
        lock_save_dir(str(save_dir))
        connection.send("locked")
        then()

    def start(save_dir, then=signal.pause):
        here, there = context.Pipe()
        process = context.Process(target=run, args=(save_dir, then, there))
        process.start()
        processes.append(process)
        assert here.recv() == "locked"
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.fixture(autouse=True)
def release_afterwards():
    yield
    for lock, _ in saving._held.values():
        lock.release(force=True)
    saving._held.clear()


def test_a_directory_in_use_is_refused_by_process_and_host(tmp_path, hold):
    process = hold(tmp_path)
    message = (
        f"training with process id {process.pid} on host {socket.gethostname()} writes to --save-dir {tmp_path}: wait"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            lock_save_dir(str(tmp_path))


def test_another_spelling_of_the_directory_is_refused_too(tmp_path, hold):
    hold(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="writes to --save-dir"):
        lock_save_dir(str(tmp_path / "link"))


def test_a_directory_whose_training_was_killed_is_taken_over(tmp_path, hold):
    process = hold(tmp_path)
    process.kill()
    process.join()
    lock_save_dir(str(tmp_path))
    assert (tmp_path / OWNER_FILE).read_text() == f"{os.getpid()} {socket.gethostname()}\n"


def test_the_last_processes_of_a_training_that_was_killed_are_waited_for(tmp_path, hold):
    killed = hold(tmp_path)
    killed.kill()
    killed.join()
    hold(tmp_path, then=lambda: time.sleep(1))
    (tmp_path / OWNER_FILE).write_text(f"{killed.pid} {socket.gethostname()}\n")
    lock_save_dir(str(tmp_path))


def test_a_training_on_another_host_is_not_waited_for(tmp_path, hold):
    hold(tmp_path)
    (tmp_path / OWNER_FILE).write_text("1 elsewhere\n")
    with pytest.raises(ValueError, match="process id 1 on host elsewhere writes"):
        lock_save_dir(str(tmp_path))


def test_an_owner_that_is_not_written_yet(tmp_path, hold):
    hold(tmp_path)
    for content in ("", "no number"):
        (tmp_path / OWNER_FILE).write_text(content)
        with pytest.raises(ValueError, match="^another training writes to"):
            lock_save_dir(str(tmp_path))


def test_one_process_may_train_twice(tmp_path):
    lock_save_dir(str(tmp_path))
    lock_save_dir(f"{tmp_path}/")
    assert len(saving._held) == 1


def test_a_process_that_ends_unlocks(tmp_path, hold):
    hold(tmp_path, then=lambda: None).join()
    lock_save_dir(str(tmp_path))


def test_a_directory_that_was_removed_is_made_again_and_locked_anew(tmp_path, caplog):
    save_dir = tmp_path / "runs"
    save_dir.mkdir()
    lock_save_dir(str(save_dir))
    shutil.rmtree(save_dir)
    keep_lock(str(save_dir))
    assert (save_dir / LOCK_FILE).is_file() and "was removed or replaced while this training ran" in caplog.text
    keep_lock(str(save_dir))
    assert len(caplog.messages) == 1


def test_a_directory_that_another_training_has_locked_since_is_left_alone(tmp_path, hold):
    save_dir = tmp_path / "runs"
    save_dir.mkdir()
    lock_save_dir(str(save_dir))
    shutil.rmtree(save_dir)
    save_dir.mkdir()
    process = hold(save_dir)
    with pytest.raises(ValueError, match=f"the training with process id {process.pid} .* writes to --save-dir"):
        PathManager.copy(__file__, str(save_dir / "checkpoint_best.pt"))
    assert sorted(path.name for path in save_dir.iterdir()) == [LOCK_FILE, OWNER_FILE]


def test_links_are_not_followed(tmp_path):
    outside, save_dir = tmp_path / "mine.txt", tmp_path / "runs"
    outside.write_text("mine")
    save_dir.mkdir()
    for name in (OWNER_FILE, f"{OWNER_FILE}.tmp", f"{ASIDE}x", "checkpoint_last.pt.tmp", "checkpoint_last.pt"):
        (save_dir / name).symlink_to(outside)
    lock_save_dir(str(save_dir))
    checkpoint_utils.torch_persistent_save({}, str(save_dir / "checkpoint_last.pt"))
    assert outside.read_text() == "mine" and not (save_dir / f"{ASIDE}x").is_symlink()


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(ValueError, match="is a symbolic link"):
        lock_save_dir(str(tmp_path))


def test_what_a_killed_training_was_writing_is_removed(tmp_path):
    (tmp_path / f"{ASIDE}abc").mkdir()
    (tmp_path / f"{ASIDE}abc/checkpoint_best.pt").touch()
    lock_save_dir(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_FILE, OWNER_FILE]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_once_and_used(tmp_path, monkeypatch, caplog, code):
    def flock(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock_save_dir(str(tmp_path))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"{tmp_path} cannot be locked (") and "take care that no other training" in warning
    monkeypatch.undo()
    lock_save_dir(str(tmp_path))
    assert len(saving._held) == 1


def test_a_directory_that_is_no_local_one_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    lock_save_dir("s3://bucket/checkpoints")
    assert "s3://bucket/checkpoints cannot be locked (it is no local directory)" in caplog.text
    assert not list(tmp_path.iterdir())


def trainer(rank):
    return SimpleNamespace(cfg=SimpleNamespace(distributed_training=SimpleNamespace(distributed_rank=rank)))


@pytest.mark.parametrize("rank, no_save, locks", [(0, False, True), (1, False, False), (0, True, False)])
def test_the_first_process_of_a_training_that_saves_locks(tmp_path, rank, no_save, locks):
    cfg = SimpleNamespace(save_dir=str(tmp_path), no_save=no_save)
    loaded = saving._lock_and_load(lambda *args, **kwargs: (args, kwargs), cfg, trainer(rank), option=1)
    assert loaded[0][0] is cfg and loaded[1] == {"option": 1}
    assert (tmp_path / LOCK_FILE).exists() is locks


def test_fairseq_alone_takes_a_directory_that_is_in_use(tmp_path, hold):
    hold(tmp_path)
    cfg, beginning = CheckpointConfig(save_dir=str(tmp_path)), SimpleNamespace(epoch=1)
    training = trainer(rank=0)
    training.checkpoint_suffix = ""
    training.load_checkpoint = lambda *args, **kwargs: None
    training.get_train_iterator = lambda **kwargs: beginning
    training.lr_step = lambda epoch: None
    with pytest.raises(ValueError, match="writes to --save-dir"):
        checkpoint_utils.load_checkpoint(cfg, training)
    assert inspect.unwrap(checkpoint_utils.load_checkpoint)(cfg, training) == (None, beginning)


def test_a_checkpoint_is_copied_aside_and_renamed(tmp_path, monkeypatch):
    source, target = tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    source.write_text("new")
    target.write_text("old")
    seen = []
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append((target.read_text(), open(a).read())))
    PathManager.copy(str(source), str(target), overwrite=True)
    assert seen == [("old", "new")], "until the whole copy is written, the old checkpoint must stand"


def test_fairseq_alone_copies_in_place(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: written.append(target))
    PathManager.copy.__wrapped__(str(tmp_path / "a.pt"), str(tmp_path / "checkpoint_last.pt"), overwrite=True)
    assert written == [str(tmp_path / "checkpoint_last.pt")]


LAST = "checkpoint_last.pt"


@pytest.fixture
def resume(tmp_path, monkeypatch):
    """``resume(flags, files, ...)``: whether fairseq is asked to load with these flags, if these files exist."""
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
        ({"continue_once": "other/model.pt"}, [f"runs/{LAST}"]),  # once it has begun, the flag is ignored
        ({"finetune_from_model": "other/model.pt"}, ["other/model.pt"]),
        ({"finetune_from_model": "other/model.pt"}, [f"runs/{LAST}"]),
    ],
    ids=str,
)
def test_what_is_there_is_loaded(flags, files, resume):
    assert resume(flags, files)


@pytest.mark.parametrize("flag", ["restore_file", "continue_once", "finetune_from_model"])
def test_what_is_not_there_is_refused(flag, resume):
    name = f"--{flag.replace('_', '-')}"
    with pytest.raises(ValueError) as refused:
        resume({flag: "checkpoint_best.pt"}, ["runs/checkpoint_best.pt"])
    assert str(refused.value) == (
        f"{name} checkpoint_best.pt does not exist: give the path of a checkpoint, such as runs/checkpoint_best.pt, or "
        f"leave {name} out to resume from runs/checkpoint_last.pt, or to start anew if that does not exist"
    )
    with pytest.raises(ValueError, match=f"{name} runs is no file: give the path of a checkpoint"):
        resume({flag: "runs"})


def test_processes_that_hold_parts_look_for_theirs(resume):
    named = {"restore_file": "other/model.pt"}
    with pytest.raises(ValueError, match="--restore-file other/model-shard1.pt does not exist"):
        resume(named, ["other/model.pt"], suffix="-shard1")
    assert resume(named, ["other/model-shard1.pt"], suffix="-shard1")
    assert resume({"continue_once": "other/begun.pt"}, ["runs/checkpoint_last-shard1.pt"], suffix="-shard1")


def test_processes_that_are_sent_it_need_none(resume):
    assert resume({"restore_file": "other/model.pt"}, rank=1)
