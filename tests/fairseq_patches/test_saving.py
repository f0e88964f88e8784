"""Locks of --save-dir, and checkpoints that are written whole. Runs that are killed are tested with the commands."""

import errno
import fcntl
import inspect
import multiprocessing
import os
import shutil
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager

from fairseq_plugins.fairseq_patches import saving
from fairseq_plugins.fairseq_patches.saving import LOCK_FILE, lock_for_training, locked_for_command


@pytest.fixture
def hold():
    """``hold(lock, save_dir)``: another process that locks a directory, until it is killed."""
    context, processes = multiprocessing.get_context("fork"), []

    def run(lock, save_dir, connection):
        with ExitStack() as held:
            if entered := lock(str(save_dir)):
                held.enter_context(entered)
            connection.send("locked")
            signal.pause()

    def start(lock, save_dir):
        here, there = context.Pipe()
        process = context.Process(target=run, args=(lock, save_dir, there))
        process.start()
        processes.append(process)
        assert here.recv() == "locked"
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.fixture(autouse=True)
def unlock_afterwards():
    yield
    while saving._held:
        os.close(saving._held.popitem()[1])


def refused(lock, save_dir):
    with pytest.raises(ValueError) as error:
        with lock(str(save_dir)) or ExitStack():
            pass
    return str(error.value)


def test_a_directory_in_use_is_refused_by_process_and_host_until_the_process_is_killed(tmp_path, hold):
    process = hold(lock_for_training, tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    owner = f"the run with process id {process.pid} on host {socket.gethostname()} writes to --save-dir"
    for save_dir in (tmp_path, tmp_path, tmp_path / "link"):
        for lock in (lock_for_training, locked_for_command):
            told = f"{owner} {save_dir}: wait until it has ended, end it, or give another --save-dir"
            assert refused(lock, save_dir) == told
    process.kill()
    process.join()
    num_held = len(saving._held)  # other tests of this process train, too
    lock_for_training(str(tmp_path))
    lock_for_training(str(tmp_path))
    assert len(saving._held) == num_held + 1 and f"id {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()


def test_a_command_lets_its_training_in_and_no_other_command(tmp_path, hold):
    command = hold(locked_for_command, tmp_path)
    assert f"process id {command.pid} on" in refused(locked_for_command, tmp_path)
    training = hold(lock_for_training, tmp_path)
    assert f"process id {training.pid} on" in refused(lock_for_training, tmp_path)
    training.kill(), training.join()
    assert f"process id {training.pid} on" in refused(locked_for_command, tmp_path), "the command still has its lock"
    command.kill(), command.join()
    for _ in range(2):
        with locked_for_command(tmp_path):
            pass


def test_processes_that_a_training_leaves_do_not_hold_its_lock(tmp_path):
    """Such as those that load data, which end seconds after a training that was killed."""
    lock_for_training(str(tmp_path))
    if (left := os.fork()) == 0:
        signal.pause()
    os.close(saving._held.pop(str(tmp_path)))
    if (other := os.fork()) == 0:
        os._exit(bool(fcntl.lockf(os.open(tmp_path / LOCK_FILE, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)))
    assert os.waitpid(other, 0)[1] == 0
    os.kill(left, signal.SIGKILL), os.waitpid(left, 0)


@pytest.mark.parametrize("content", [b"", b"\xff no text"])
def test_an_owner_without_a_readable_name(content, tmp_path, hold):
    hold(lock_for_training, tmp_path)
    (tmp_path / LOCK_FILE).write_bytes(content)
    told = refused(lock_for_training, tmp_path)
    assert told.startswith(f"{content.decode(errors='replace') or 'another run'} writes to --save-dir")


def test_a_directory_that_was_removed_is_made_again_and_locked_anew(tmp_path, caplog):
    save_dir, saved = tmp_path / "runs", Mock()

    def save():
        saving._keep_lock_and_save(saved, "trainer", str(save_dir / "checkpoint_best.pt"), {"epoch": 1})

    save()
    assert not save_dir.exists(), "it is not this process that saves there"
    save_dir.mkdir()
    lock_for_training(str(save_dir))
    shutil.rmtree(save_dir)
    for _ in range(2):
        save()
    assert (save_dir / LOCK_FILE).is_file() and len(caplog.messages) == 1
    assert "was removed or replaced while this run trained" in caplog.text
    assert saved.mock_calls == 3 * [call("trainer", str(save_dir / "checkpoint_best.pt"), {"epoch": 1})]


def test_links_are_not_followed(tmp_path, caplog):
    outside, save_dir = tmp_path / "mine.txt", tmp_path / "runs"
    outside.write_text("mine")
    save_dir.mkdir()
    for name in (LOCK_FILE, "checkpoint_last.pt"):
        (save_dir / name).symlink_to(outside)
    lock_for_training(str(save_dir))
    assert "cannot be locked" in caplog.text
    PathManager.copy(__file__, str(save_dir / "checkpoint_last.pt"), overwrite=True)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_only_warns(tmp_path, monkeypatch, caplog, code):
    def lockf(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with locked_for_command(tmp_path):
        lock_for_training(str(tmp_path))
    for record in caplog.records:
        assert record.levelname == "WARNING" and record.getMessage().startswith(f"{tmp_path} cannot be locked (")
    assert len(caplog.records) == 2 and not saving._held
    monkeypatch.undo()
    lock_for_training(str(tmp_path))
    assert len(saving._held) == 1


def trainer(rank):
    return SimpleNamespace(cfg=SimpleNamespace(distributed_training=SimpleNamespace(distributed_rank=rank)))


@pytest.mark.parametrize("rank, no_save, locks", [(0, False, True), (1, False, False), (0, True, False)])
def test_the_first_process_of_a_training_that_saves_locks(tmp_path, rank, no_save, locks):
    cfg = SimpleNamespace(save_dir=str(tmp_path), no_save=no_save)
    loaded = saving._lock_and_load(lambda *args, **kwargs: (args, kwargs), cfg, trainer(rank), option=1)
    assert loaded[0][0] is cfg and loaded[1] == {"option": 1}
    assert (tmp_path / LOCK_FILE).exists() is locks


def test_fairseq_alone_takes_a_directory_that_is_in_use(tmp_path, hold):
    hold(lock_for_training, tmp_path)
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


@pytest.fixture
def full_disk(monkeypatch):
    """``full_disk(num)``: the next ``num`` writes of a checkpoint leave a part of it and fail."""
    left = [0]
    write = Path.write_bytes

    def write_part(path, content):
        if left[0] == 0:
            return write(path, content)
        left[0] -= 1
        write(path, bytes(content[:100]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_part)
    monkeypatch.setattr(saving, "SECONDS_BETWEEN", 0)
    return lambda num: left.__setitem__(0, num)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, full_disk, caplog):
    path, saved = tmp_path / "checkpoint1.pt", {"weights": torch.arange(1000)}
    full_disk(2)
    checkpoint_utils.torch_persistent_save(saved, str(path))
    assert torch.equal(torch.load(path)["weights"], saved["weights"])
    assert [record.getMessage() for record in caplog.records] == 2 * [
        f"{path} could not be written (No space left on device): next try in 0 seconds"
    ]
    full_disk(3)
    with pytest.raises(OSError) as refused:
        checkpoint_utils.torch_persistent_save({}, str(path))
    assert refused.value.filename == str(path), "the message names it"
    assert torch.equal(torch.load(path)["weights"], saved["weights"]) and [*tmp_path.iterdir()] == [path]


def test_fairseq_alone_saves_after_a_part(tmp_path, monkeypatch):
    save, path, tries = torch.save, tmp_path / "checkpoint1.pt", []

    def save_part(content, file):
        tries.append(file.write(b"a part") if not tries else save(content, file))
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", save_part)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    inspect.unwrap(checkpoint_utils.torch_persistent_save)({"weights": torch.arange(9)}, str(path))
    assert path.read_bytes().startswith(b"a part")
