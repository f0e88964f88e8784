"""A process whose output is shown and kept."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import current_thread, main_thread
from typing import Any, Collection, Iterator, List, Mapping, Optional, Sequence

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
    wait for the command. Elsewhere a training ends when nobody reads its log any more (``host/unread_log.py``).

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
