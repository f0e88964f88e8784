"""Folders that the processes of one test run share, so that what takes long is made by one of them alone."""

import os
import shutil
from pathlib import Path
from typing import Callable

import pytest
from filelock import FileLock


class MadeOnce:
    """``made_once(name, make)``: this process's own copy of a folder that ``make`` has filled in the first that asked.

    Paths that ``make`` has written into files lead to the original, which stays.
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
