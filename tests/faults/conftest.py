"""A folder to work in, made once and copied for each fault; which names are tried."""

import os
import pickle
import shutil
import tempfile
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from command_table import WRITINGS
from crashes import Undisturbed, run_undisturbed
from workplace import furnish

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    """Try as many names of each test as ``--faults`` says, spread evenly; ``--fault-seed`` chooses others."""
    wanted, seed, left_out = config.getoption("--faults"), config.getoption("--fault-seed"), set()
    named = [item for item in items if item.path.parent == HERE and hasattr(item, "callspec")]
    for _, of_one in groupby(named, key=lambda item: item.function):
        names = list(of_one)
        kept = {(seed + place * len(names) // wanted) % len(names) for place in range(min(wanted, len(names)))}
        left_out.update(item for place, item in enumerate(names) if wanted < len(names) and place not in kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def few_are_expected(warm, monkeypatch):
    """Small corpora pass; programs that commands start are warm."""
    monkeypatch.setenv("EXPECTED_COUNTS", "skip")


@pytest.fixture(scope="session")
def furnished(made_once, programs) -> Path:
    """The folder that copies are made of."""
    return made_once("workplace", lambda folder: furnish(folder, python=os.path.join(programs, "python")))


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


@pytest.fixture
def undisturbed(made_once, workplace):
    """``undisturbed(name)``: what one of ``WRITINGS`` does where nothing happens to it."""

    def run(name: str) -> Undisturbed:
        def make(kept: Path) -> None:
            with workplace() as folder:
                (kept / "run").write_bytes(pickle.dumps(run_undisturbed(WRITINGS[name], folder)))

        return pickle.loads((made_once(f"undisturbed {name}", make) / "run").read_bytes())

    return run
