"""Settings and fixtures of all tests."""

import gc
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Callable

import preloaded  # noqa: F401
import pytest
import torch
from example_parts import EXAMPLE_GATES
from filelock import FileLock
from warm_process import warm_programs

from fairseq_plugins.output_layers.gates import OUTPUT_GATES

pytest.register_assert_rewrite("assertions", "cell_contract", "decoder_contract")


def pytest_addoption(parser):
    parser.addoption("--faults", type=int, default=8, help="how many faults tests/faults tries of each kind")
    parser.addoption("--fault-seed", type=int, default=0, help="other faults for another number")
    # a process that has run no other test before reaches its full size after 45 updates
    parser.addoption("--long-run", type=int, default=200, help="updates, lines or sentences of tests/long_runs")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes longer than a few seconds")
    config.addinivalue_line("markers", "data: needs a real corpus on disk")
    config.addinivalue_line("markers", "gpu: compares a GPU with the CPU; skips where there is none")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell lacks it
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # programs that tests start share the cores


def pytest_collection_modifyitems(items):
    for item in items:
        if "integration" in item.path.parts:
            item.add_marker("slow")
    # long tests first, so that no process is left alone with them at the end
    items.sort(key=lambda item: (not item.path.name.startswith("test_readme"), "integration" not in item.path.parts))


def pytest_collection_finish():
    gc.freeze()  # garbage collections need not look through thousands of tests


class MadeOnce:
    """``made_once(name, make)``: this process's copy of a folder that ``make`` filled in the process that asked first.

    So the processes of a run share what takes long. Paths that ``make`` wrote into files lead to the original.
    """

    def __init__(self, factory: pytest.TempPathFactory):
        self._factory = factory
        own = factory.getbasetemp()
        self._originals = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "originals"
        self._originals.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        original, finished = self._originals / name, self._originals / f"{name}.finished"
        with FileLock(self._originals / f"{name}.lock"):
            if not finished.exists():
                shutil.rmtree(original, ignore_errors=True)
                original.mkdir()
                make(original)
                finished.touch()
        return shutil.copytree(original, self._factory.mktemp(name) / name, symlinks=True)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    return MadeOnce(tmp_path_factory)


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A folder with Python and fairseq's programs, which are forked from a process that has imported the package."""
    with warm_programs(tmp_path_factory.mktemp("warm")) as folder:
        yield folder


@pytest.fixture
def warm(programs, monkeypatch):
    """Tests start the commands of ``programs``."""
    monkeypatch.setenv("PATH", programs, prepend=os.pathsep)
    monkeypatch.setattr(sys, "executable", os.path.join(programs, "python"))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """``stand_in(program, code)``: Python that runs in place of a program of fairseq, which processes start."""
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return lambda program, code: (package / f"{program}.py").write_text(code)


@pytest.fixture
def gates_of_the_examples():
    """The gates of example_parts.py are values of ``--output-gate``."""
    for name, gate in EXAMPLE_GATES.items():
        OUTPUT_GATES.register(name)(gate)
    yield
    for name in EXAMPLE_GATES:
        del OUTPUT_GATES[name]
