"""Commands in processes of their own that need not import fairseq first.

A server process imports fairseq and the plugins once, and forks for each command. What a command sees is what
``python -m MODULE ARGUMENTS`` gives it: its own process, arguments, working directory, input and output.
"""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Dict, Iterator, List, Sequence

PYTHON = sys.executable
"""Python itself, where ``warm_programs`` stand in for it."""
IMPORTED = ("torch._dynamo", "sacrebleu", "sacremoses", "rouge_score.rouge_scorer", "matplotlib.pyplot", "preloaded")
"""By the server; torch imports the first when the first optimiser is made."""
FIND_INSTALLED = """
import os
from importlib.util import find_spec
found = find_spec("fairseq_plugins")
print(os.path.dirname(found.origin) if found else "", end="")
"""
WITHOUT_PATH = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
HOST_PROGRAMS = ("train", "generate", "interactive", "preprocess", "validate", "eval-lm", "score")


@contextmanager
def warm_programs(folder: Path) -> Iterator[str]:
    """A folder for PATH with ``python``, ``fairseq-train`` ...: the server runs them, and what they start.

    Args:
        folder: empty; takes the programs and the socket of the server.
    """
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
        server = subprocess.Popen(
            [PYTHON, here, str(listening.fileno()), programs / "python"],
            env={**os.environ, "PYTHONPATH": str(here.parents[1])},
            stdin=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )
    try:
        yield str(programs)
    finally:
        server.kill()
        server.wait()


def _serve(listening: socket.socket, python: Path) -> None:
    for module in IMPORTED:
        import_module(module)
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


def _run(words: List[str], environment: Dict[str, str], folder: str, descriptors: Sequence[int]):
    """``python *words``, words being ``-m MODULE ...`` or ``FILE.py ...``, in this process, to its end."""
    import torch
    from forks import program, status_of

    import fairseq_plugins

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


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
