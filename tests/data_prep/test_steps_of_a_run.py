"""Steps and results as folders: what an interruption leaves."""

from functools import partial
from pathlib import Path

import pytest
from preparation import steps
from preparation.errors import DataError
from preparation_runs import snapshot
from small_texts import write_files


def test_interrupted_step_leaves_the_old_one(tmp_path: Path) -> None:
    def fill(text: str, folder: Path) -> None:
        (folder / "file").write_text(text)
        if text == "bad":
            raise DataError("no")

    target = tmp_path / "step"
    steps.run_step(target, {"a": 1}, partial(fill, "good"))
    steps.run_step(target, {"a": 1}, partial(fill, "never called"))
    with pytest.raises(DataError):
        steps.run_step(target, {"a": 2}, partial(fill, "bad"))
    assert (target / "file").read_text() == "good" and list(tmp_path.iterdir()) == [target]
    steps.run_step(target, {"a": 2}, partial(fill, "better"))
    assert (target / "file").read_text() == "better"


@pytest.mark.parametrize("name", ["thesis.tex", "train.txt", "text8", "train.txt.part", "inside/train.txt"])
def test_foreign_folder_is_not_replaced(name: str, tmp_path: Path) -> None:
    before = snapshot(write_files(tmp_path / "text", {name: b"precious"}))
    with pytest.raises(DataError, match="text holds something that this script did not write: .* --work"):
        steps.run_step(tmp_path / "text", {}, lambda folder: None)
    assert snapshot(tmp_path / "text") == before


def test_empty_folder_becomes_a_step(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    steps.run_step(tmp_path / "text", {}, lambda folder: (folder / "new").touch())
    assert {file.name for file in (tmp_path / "text").iterdir()} == {"new", "step.json"}


def test_a_mount_point_is_no_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be replaced by renaming."""
    monkeypatch.setattr(steps.os.path, "ismount", lambda path: path == tmp_path)
    steps.check_writable(tmp_path / "inside")
    with pytest.raises(DataError, match="is a mount point, .*: pass a folder in it as --dest"):
        steps.check_writable(tmp_path)


def test_result_is_made_by_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is removed with the run that held it, and the one that waited holds another."""
    first = steps.reserved(tmp_path / "result")
    first.__enter__()
    told = []

    def end_the_first_run(message: str) -> None:
        told.append(message)
        first.__exit__(None, None, None)

    monkeypatch.setattr(steps, "note", end_the_first_run)
    with steps.reserved(tmp_path / "result"):
        assert told == [f"waiting for another run that makes {tmp_path / 'result'}"]
        assert (tmp_path / ".result.lock").exists()
    assert list(tmp_path.iterdir()) == []
