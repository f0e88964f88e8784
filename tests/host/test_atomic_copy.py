"""Copies of checkpoints."""

import os
import shutil

from fairseq.file_io import PathManager


def test_a_checkpoint_is_copied_aside_and_renamed(tmp_path, monkeypatch):
    source, target = tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    source.write_text("new")
    target.write_text("old")
    seen = []
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append((target.read_text(), open(a).read())))
    PathManager.copy(str(source), str(target), overwrite=True)
    assert seen == [("old", "new")], "until the whole copy is written, the old checkpoint must stand"


def test_the_host_alone_copies_in_place(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: written.append(target))
    PathManager.copy.__wrapped__(str(tmp_path / "a.pt"), str(tmp_path / "checkpoint_last.pt"), overwrite=True)
    assert written == [str(tmp_path / "checkpoint_last.pt")]
