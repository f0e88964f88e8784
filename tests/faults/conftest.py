"""A folder to work in, made once and copied for each fault."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from workplace import furnish


@pytest.fixture(autouse=True)
def few_are_expected(warm, monkeypatch):
    """Small corpora pass; programs that commands start are warm."""
    monkeypatch.setenv("EXPECTED_COUNTS", "skip")


@pytest.fixture(scope="session")
def furnished(tmp_path_factory, programs) -> Path:
    """The folder that copies are made of."""
    return furnish(tmp_path_factory.mktemp("workplace"), python=os.path.join(programs, "python"))


@pytest.fixture
def workplace(furnished):
    """``with workplace() as folder``: a copy, with odd files beside; it goes at the end."""

    @contextmanager
    def copied():
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(shutil.copytree(furnished, Path(parent) / "folder"))
            (folder / "loop").symlink_to("loop")
            (folder / "noise").write_bytes(bytes(range(256)) * 4)
            (folder / "zeros").write_bytes(bytes(1000))
            (folder / "empty").touch()
            yield folder

    return copied
