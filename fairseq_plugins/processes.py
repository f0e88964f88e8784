"""A process whose output is shown and kept."""

import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import current_thread, main_thread
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence

import fairseq_plugins
from fairseq_plugins.command_line import ProgramFailed

FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that reach the process when they are sent to this one."""

LONGEST_WAIT = 0.1
"""Seconds of one call that waits for others: a signal that comes just before such a call is seen only after it."""

_TIED = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which exec keeps
if os.getppid() != int(parent):  # it died before
    sys.exit(1)
os.execvp(command[0], command)
"""
"""A program that asks the kernel to end it with its parent, and then becomes the command.

It is a program of its own, not a ``preexec_fn``, which may deadlock where this process has threads.
"""


def start_tied(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command that does not outlive this process, however this one ends.

    On Linux the kernel kills it. The signal comes when the thread ends that called this function, so that thread must
    wait for the command. Elsewhere a training ends when nobody reads its log any more (``fairseq_patches/errors.py``).

    Args:
        command: program and arguments.
        options: of ``subprocess.Popen``.

    Raises:
        OSError: if no process can be started.
    """
    words = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *map(os.fspath, command)]
    return subprocess.Popen(words, **options)


def run_logged(command: Sequence[str], *, log: Path, environment: Optional[Mapping[str, str]] = None) -> int:
    """Run a command to its end, show its output and append it to a file.

    Signals are handed on, so that the command ends or saves its state as if it had been started by itself. It dies with
    this process, since nobody would keep its output.

    Args:
        command: program and arguments.
        log: file, in a directory that exists.
        environment: of the command; None is this process's.

    Returns:
        exit status, as a shell tells it: 128 and the signal's number where one ended the command.

    Raises:
        OSError: if no process can be started, or the output cannot be written.
    """
    with log.open("ab") as file:
        # a group of its own: an interrupt from the keyboard comes once, handed on, not again from the terminal
        process = start_tied(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )
        with process, forwarded_to([process]), DefaultSelector() as selector:
            assert isinstance(process.stdout, BufferedReader)
            selector.register(process.stdout, EVENT_READ)
            try:
                while output := _next_output(process.stdout, selector):
                    file.write(output)
                    file.flush()
                    sys.stdout.buffer.write(output)
                    sys.stdout.buffer.flush()
            except BaseException:
                process.terminate()
                raise
    return exit_status(process)


def _next_output(stream: BufferedReader, selector: DefaultSelector) -> bytes:
    """What a process has written, once there is something; nothing once it has closed the stream."""
    while not selector.select(LONGEST_WAIT):
        pass
    return stream.read1()


def exit_status(process: subprocess.Popen[bytes]) -> int:
    """That of a process that has ended, as a shell tells it: 128 and the signal's number where one ended it."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


@contextmanager
def forwarded_to(
    processes: Collection[subprocess.Popen[bytes]], *, signals: Sequence[signal.Signals] = FORWARDED
) -> Iterator[Sequence[int]]:
    """Hand signals that are sent to this process on to others, within the block; in the main thread alone.

    One that this process ignores, as a hang-up under ``nohup``, stays ignored.

    Args:
        processes: those that are in it when a signal comes get it.
        signals: that are handed on.

    Yields:
        the signals that have come.
    """
    came: List[int] = []
    if current_thread() is not main_thread():
        yield came
        return

    def hand_on(number: int, _: object) -> None:
        came.append(number)
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)  # not send_signal, which takes the status of one that has ended

    heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, hand_on) for number in heeded}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The C library's allocator in trainings, which gain by another setting.


TUNABLES = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432:glibc.malloc.tcache_count=0"
"""Value of ``GLIBC_TUNABLES``.

``trim_threshold``: freed memory stays with the process, up to 1 GiB. By default the C library returns what an update
freed to the system and is given fresh pages for the next one, which takes a tenth to almost a quarter of a language
model's time on a CPU. ``mmap_threshold``: 32 MiB, to which the default rises by itself; a fixed ``trim_threshold``
stops that.

``tcache_count``: no cache of small freed blocks for a thread. An aligned block leaves two small remainders. In that
cache they are handed out again and so keep the large block between them from being joined and reused: with DRILL,
blocks of 16 MB pile up.
"""

VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""By which a user sets the allocator."""


def training_environment() -> Dict[str, str]:
    """Environment of a training: this process's, with ``GLIBC_TUNABLES``.

    The variable is left out where the user has set the allocator by any of :data:`VARIABLES`, be it empty, or where the
    C library is not glibc. It is read at the start of a process, so the environment of one that trains is its place.
    """
    set_by_user = any(name in os.environ for name in VARIABLES)
    if set_by_user or platform.libc_ver()[0] != "glibc":
        return dict(os.environ)
    return {**os.environ, "GLIBC_TUNABLES": TUNABLES}


# A program of fairseq, such as ``fairseq-train``, in a process of its own.


USER_DIR = Path(fairseq_plugins.__file__).resolve().parent
"""Value of ``--user-dir``."""

WRONGLY_GIVEN = re.compile(r"ValueError: |\S+: error: ")
"""Begins the last line of a program that was stopped by what the user gave wrongly; the second is argparse's."""

TRACEBACK = "Traceback (most recent call last):"
"""A line above it where that error was a fault of the program."""

NUM_TOLD_LINES = 5
"""Of a log, that are told where a program fails."""


def fairseq_command(program: str, arguments: Sequence[str]) -> List[str]:
    """The command line of a program of fairseq, "train" or "generate", in the running interpreter."""
    return [sys.executable, "-m", f"fairseq_cli.{program}", *arguments]


def run_fairseq(program: str, arguments: Sequence[str], *, log: Path, output: Optional[Path] = None) -> float:
    """Run a program of fairseq to its end; a training gets the allocator of :func:`training_environment`.

    It dies with this process.

    Args:
        program: "train" or "generate".
        arguments: of the program.
        log: file that takes what it writes to standard error; it is replaced.
        output: file that takes its standard output; None writes it to the log.

    Returns:
        peak resident memory of the process in MiB; Linux counts no less than this process held at its start.

    Raises:
        ValueError: if the program ended with one, which tells what the user gave wrongly; the text names the log.
        ProgramFailed: if it failed in another way, with the last lines of the log.
    """
    with ExitStack() as files:
        errors = files.enter_context(log.open("wb"))
        results = errors if output is None else files.enter_context(output.open("wb"))
        environment = training_environment() if program == "train" else None
        process = start_tied(fairseq_command(program, arguments), stdout=results, stderr=errors, env=environment)
        try:
            # an interrupt from the keyboard reaches both
            with forwarded_to([process], signals=(signal.SIGTERM, signal.SIGHUP)):
                while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
                    time.sleep(LONGEST_WAIT)
        except BaseException:
            process.kill()
            process.wait()
            raise
    _, status, usage = waited
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        told = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if told and WRONGLY_GIVEN.match(told[-1]) and TRACEBACK not in told:
            raise ValueError(f"{WRONGLY_GIVEN.sub('', told[-1], count=1)} (log: {log})")
        ended = f"fairseq-{program} ended with status {process.returncode} and told nothing"
        raise ProgramFailed("\n".join(told[-NUM_TOLD_LINES:]) or ended)
    return usage.ru_maxrss / 1024


# Commands that run side by side.


@dataclass(frozen=True, kw_only=True)
class Task:
    """A command among others.

    Attributes:
        name: how it is told of.
        command: program and arguments.
        needs: names of the tasks that must have ended well before it.
    """

    name: str
    command: Sequence[str]
    needs: Collection[str] = ()


def run_side_by_side(tasks: Sequence[Task], *, num: int) -> Dict[str, int]:
    """Run commands in processes of their own, so many at once, in their order where they need no other.

    What they write to standard output is let go, what they write to standard error is shown. One that fails ends no
    other; those that need it are left out. Signals are handed on to all that run, and none is started after one. All
    die with this process.

    Args:
        tasks: names are unique.
        num: that run at once.

    Returns:
        exit status by name, as a shell tells it, of those that were started.

    Raises:
        SystemExit: as a shell tells a signal that came, where none failed by it.
    """
    waiting = list(tasks)
    running: Dict[str, subprocess.Popen[bytes]] = {}
    statuses: Dict[str, int] = {}
    begun_at: Dict[str, float] = {}
    with forwarded_to(running.values()) as signals:
        try:
            while True:
                for name, process in list(running.items()):
                    if process.poll() is not None:
                        statuses[name] = exit_status(running.pop(name))
                        _tell_end(name, statuses[name], hours=(time.monotonic() - begun_at[name]) / 3600)
                for task in _ready(waiting, statuses)[: num - len(running)]:
                    if signals:
                        break
                    waiting.remove(task)
                    begun_at[task.name] = time.monotonic()
                    print(f"== {task.name} begins ({len(begun_at)} of {len(tasks)})", file=sys.stderr, flush=True)
                    running[task.name] = process = start_tied(
                        task.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0
                    )
                    for number in signals:  # that came as it was started
                        process.send_signal(number)
                if not running:
                    break
                time.sleep(LONGEST_WAIT)
        except BaseException:
            for process in running.values():
                process.terminate()
            raise
    if signals and not any(statuses.values()):
        raise SystemExit(128 + signals[0])
    return statuses


def _ready(waiting: Sequence[Task], statuses: Dict[str, int]) -> List[Task]:
    """Those that need nothing which has not ended well."""
    return [task for task in waiting if all(statuses.get(name) == 0 for name in task.needs)]


def _tell_end(name: str, status: int, *, hours: float) -> None:
    how = f"ended after {hours:.2f} hours" if status == 0 else f"ended with status {status}"
    print(f"== {name} {how}", file=sys.stderr, flush=True)
