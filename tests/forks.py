"""Work in forked processes, under limits, and what became of it."""

import logging
import os
import resource
import runpy
import select
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional, Sequence

HANGING = 60
"""Seconds after which work is killed that has not ended."""
MEMORY = 5 * 2**29
"""Bytes that work may add to what this process holds. Imports of torch hold half a gibibyte, earlier tests more."""


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        status: as :func:`os.waitstatus_to_exitcode` has it; a signal is a negative number.
        out, err: what it printed.
        hung: whether it had to be killed.
    """

    status: int
    out: str
    err: str
    hung: bool


class Fork:
    """A fork of this process that does work.

    Args:
        work: ends with SystemExit, an error, or returns; the status is that of a Python program.
        folder: its working directory.
        stdin: what it reads.
        file_bytes: no file may become longer, as on a full disk; None for as long as it likes.
        at_limit: what SIGXFSZ does there: SIG_IGN, the write fails; SIG_DFL, it kills.
        seconds: after which it is killed.
    """

    def __init__(
        self,
        work: Callable[[], None],
        *,
        folder: Path,
        stdin: bytes = b"",
        file_bytes: Optional[int] = None,
        at_limit: signal.Handlers = signal.SIG_IGN,
        seconds: float = HANGING,
    ):
        self._seconds = seconds
        typed = os.memfd_create("stdin")
        os.pwrite(typed, stdin, 0)
        printed, told = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.setpgid(0, 0)
            os.chdir(folder)
            for place, stream in enumerate((typed, printed[1], told[1])):
                os.dup2(stream, place)
            for stream in (typed, *printed, *told):
                os.close(stream)
            resource.setrlimit(resource.RLIMIT_DATA, (_held() + MEMORY,) * 2)
            if file_bytes is not None:
                signal.signal(signal.SIGXFSZ, at_limit)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
            os._exit(status_of(work))
        for stream in (typed, printed[1], told[1]):
            os.close(stream)
        self._readers = ThreadPoolExecutor(2)
        self._output = [self._readers.submit(_read, stream) for stream in (printed[0], told[0])]

    def finish(self) -> Ended:
        """Wait for its end; where it hangs it is killed, with what it started."""
        ended = os.pidfd_open(self._pid)
        hung = not select.select([ended], [], [], self._seconds)[0]
        os.close(ended)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        out, err = (output.result() for output in self._output)
        self._readers.shutdown()
        return Ended(status, out, err, hung)


def in_fork(work: Callable[[], None], **options) -> Ended:
    """Do work in a fork of this process, to its end; options are those of :class:`Fork`."""
    return Fork(work, **options).finish()


def program(words: Sequence[str]) -> Callable[[], None]:
    """The work of Python, given a module or a file ``.py`` and its arguments."""

    def work() -> None:
        logging.root.handlers.clear()  # of what ran before; fairseq sets them when it is imported
        sys.argv = list(words)
        if words[0].endswith(".py"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")
        else:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)

    return work


def _held() -> int:
    """Bytes of private data that this process holds, as RLIMIT_DATA counts them."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    return 1024 * int(line.split()[1])


def status_of(work: Callable[[], None]) -> int:
    """Do the work on new standard streams; returns the exit status of a Python program that does it."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    status: object = 0
    try:
        work()
    except SystemExit as end:
        status = end.code
    except BaseException:
        status = 1
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as end:  # of a hook that has a status of its own
            status = end.code
    if isinstance(status, str):
        print(status, file=sys.stderr)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return 120
    return status if isinstance(status, int) else 0 if status is None else 1


def _read(stream: int) -> str:
    with open(stream, "rb") as file:
        return file.read().decode("utf-8", errors="replace")
