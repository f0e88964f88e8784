"""Commands in processes of their own that need not import fairseq first.

A server process imports fairseq and the plugins once, and forks for each command. What a command sees is what
``python -m MODULE ARGUMENTS`` gives it: its own process, arguments, working directory, input and output.
"""

import json
import multiprocessing
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Union

import pytest
import torch
from forks import program, status_of

import fairseq_plugins

TIMEOUT_SECONDS = 300
PYTHON = sys.executable
"""Python itself, where ``warm_programs`` stand in for it."""
PRELOADED = ["torch._dynamo", "sacrebleu", "sacremoses", "rouge_score.rouge_scorer", "matplotlib.pyplot", "preloaded"]
"""By the server; torch imports the first when the first optimiser is made."""
FIND_INSTALLED = """
import os
from importlib.util import find_spec
found = find_spec("fairseq_plugins")
print(os.path.dirname(found.origin) if found else "", end="")
"""
WITHOUT_PATH = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
HOST_PROGRAMS = ("train", "generate", "interactive", "preprocess", "validate", "eval-lm", "score")

_server = multiprocessing.get_context("forkserver")


def _ensure_running() -> None:
    """Start the server unless it runs. Python passes over what it cannot preload, and does not hand on its own path."""
    _server.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


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
        """Tell whether the process has ended."""
        return self._process.exitcode is not None

    @property
    def printed(self) -> str:
        """The output so far."""
        paths = [self._folder / name for name in ("stdout", "stderr")]
        return "".join(path.read_text(encoding="utf-8") for path in paths if path.exists())

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
    _ensure_running()
    with tempfile.TemporaryDirectory() as folder:
        words = [module, *map(str, arguments)]
        command = Command(words, Path(folder), environment=environment, cwd=cwd, stdin=stdin)
        try:
            yield command
        finally:
            command.kill()


@contextmanager
def warm_programs(folder: Path) -> Iterator[str]:
    """A folder for PATH with ``python``, ``fairseq-train`` ...: the server runs them, and what they start.

    Args:
        folder: empty; takes the programs and the socket of the server.
    """
    _ensure_running()
    programs = folder / "bin"
    programs.mkdir()
    address = str(folder / "socket")
    here = Path(__file__).resolve()
    installed = subprocess.check_output([PYTHON, "-c", FIND_INSTALLED], cwd=programs, env=WITHOUT_PATH, text=True)
    for name in ("python", "python3", "fairseq-plugins", *(f"fairseq-{name}" for name in HOST_PROGRAMS)):
        client = (PYTHON, "-I", "-S", here.with_name("warm_client.py"), address, here.parents[1], installed, name)
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(map(str, client))} "$@"\n')
        (programs / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        server = _server.Process(target=_serve, args=(listening, programs / "python"))
        server.start()
    try:
        yield str(programs)
    finally:
        server.kill()
        server.join()


def _serve(listening: socket.socket, python: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that answer
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(connection, python)
            os._exit(0)
        connection.close()


def _answer(connection: socket.socket, python: Path) -> None:
    """Run what one client asks for, and tell it the exit status; where the client dies, so does the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as asked:
        request = json.loads(asked.readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        sys.executable = str(python)
        _run(request["words"], request["environment"], request["folder"], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    if connection in select.select([connection, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _work(arguments: List[str], environment: Dict[str, str], cwd: Optional[Path], folder: Path):
    output = os.O_WRONLY | os.O_CREAT
    paths = {"stdin": os.O_RDONLY, "stdout": output, "stderr": output}
    descriptors = [os.open(folder / name, mode) for name, mode in paths.items()]
    sys.executable = shutil.which("python", path=environment["PATH"])
    _run(["-m", *arguments], environment, cwd or os.getcwd(), descriptors)


def _run(words: List[str], environment: Dict[str, str], folder: Union[str, Path], descriptors: Sequence[int]):
    """``python *words``, words being ``-m MODULE ...`` or ``FILE.py ...``, in this process, to its end."""
    assert "preloaded" in sys.modules, "the server lacks what it should have preloaded"
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # torch read the variable in the server
    os.chdir(folder)
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
    user_dir = os.path.abspath("fairseq_plugins")
    if os.path.isdir(user_dir):
        fairseq_plugins.__path__.append(user_dir)  # --user-dir is known by its path, which may be a link's
    sys.exit(status_of(program(words[1:] if words[0] == "-m" else words)))
