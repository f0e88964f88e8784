"""Commands in processes of their own that need not import the host first.

A server process imports fairseq and the plugins once, and forks for each command. What a command sees is what
``python -m MODULE ARGUMENTS`` gives it: its own process, arguments, working directory, input and output.
"""

import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, Optional

import torch

TIMEOUT_SECONDS = 300

_server = multiprocessing.get_context("forkserver")


class Command:
    """A command that was started.

    Args:
        arguments: the module and its arguments.
        folder: where its input and output lie.
        environment: its environment variables.
        cwd: its working directory; None for that of the server.
        stdin: what it reads.
    """

    def __init__(
        self, arguments: List[str], folder: Path, *, environment: Dict[str, str], cwd: Optional[Path], stdin: bytes
    ):
        self.arguments = arguments
        self._folder = folder
        (folder / "stdin").write_bytes(stdin)
        self._process = _server.Process(target=_work, args=(arguments, environment, cwd, folder))
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it runs no longer."""
        return self._process.exitcode is not None

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.join()

    def finish(self) -> subprocess.CompletedProcess:
        """Wait for its end; returns its exit status and its output as text.

        Raises:
            subprocess.TimeoutExpired: if it takes too long.
        """
        self._process.join(TIMEOUT_SECONDS)
        if not self.has_ended():
            raise subprocess.TimeoutExpired(self.arguments, TIMEOUT_SECONDS)
        out, err = ((self._folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(self.arguments, self._process.exitcode, out, err)


@contextmanager
def started(
    module: str, *arguments, environment: Dict[str, str], cwd: Optional[Path] = None, stdin: bytes = b""
) -> Iterator[Command]:
    """``python -m module arguments``, killed where it still runs at the end of the context."""
    _server.set_forkserver_preload(["fairseq_plugins"])
    with tempfile.TemporaryDirectory() as folder:
        words = [module, *map(str, arguments)]
        command = Command(words, Path(folder), environment=environment, cwd=cwd, stdin=stdin)
        try:
            yield command
        finally:
            command.kill()


def _work(arguments: List[str], environment: Dict[str, str], cwd: Optional[Path], folder: Path):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # torch read the variable in the server
    os.chdir(cwd or os.getcwd())
    os.dup2(os.open(folder / "stdin", os.O_RDONLY), 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout, sys.stderr = (open(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2))
    sys.argv = arguments
    logging.root.handlers.clear()  # the host's commands set them before they import the host
    status = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(status)
