"""Steps and results as folders: what an interruption leaves."""

from functools import partial
from pathlib import Path

import pytest
from preparation import steps
from preparation.errors import DataError


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


def test_foreign_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "thesis.tex").write_text("precious")
    with pytest.raises(DataError, match="text holds something that this script did not write: .* --work"):
        steps.run_step(tmp_path / "text", {}, lambda folder: None)
    assert (tmp_path / "text" / "thesis.tex").read_text() == "precious"
