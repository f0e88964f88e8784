"""Run commands in processes of their own, such as fairseq-train: with a log and forwarded signals, several at once."""

import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import IO, Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Sequence

from fairseq_plugins.console import ProgramFailed
from fairseq_plugins.options import UserError

FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
"""Signals to this process that are forwarded to the command."""

LONGEST_WAIT = 0.1
"""Seconds of one waiting call. A signal just before such a call is handled only after it."""

_TIED = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which exec keeps
if os.getppid() != int(parent):  # it has died already
    sys.exit(1)
os.execvp(command[0], command)
"""
"""A program that asks the kernel to kill it with its parent, and then executes the command.

A ``preexec_fn`` could do the same, and may deadlock if this process has threads.
"""


def start_tied(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command that does not outlive this process, however this one ends.

    On Linux the kernel kills it when the thread that called this function ends, so that thread must wait for the
    command. On other systems it may run on.

    Args:
        command: program and arguments.
        options: of ``subprocess.Popen``.

    Raises:
        OSError: if no process can be started.
    """
    words = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *map(os.fspath, command)]
    return subprocess.Popen(words, **options)


def exit_status(process: subprocess.Popen[bytes]) -> int:
    """Exit status of a process that has ended, as in a shell: 128 plus the number of a signal that ended it."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


@contextmanager
def forwarded_to(
    processes: Collection[subprocess.Popen[bytes]], *, signals: Sequence[signal.Signals] = FORWARDED
) -> Iterator[Sequence[int]]:
    """Forward signals to this process to other processes within the block; only in the main thread.

    Signals that this process ignores, such as a hang-up under ``nohup``, stay ignored.

    Args:
        processes: all in it when a signal arrives get the signal.
        signals: to forward.

    Yields:
        the signals that have arrived, except Ctrl-Z's, by which all processes pause.
    """
    received: List[int] = []
    if current_thread() is not main_thread():
        yield received
        return

    def send(number: int) -> None:
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)  # send_signal would reap a process that has ended, and its status

    def forward(number: int, _: object) -> None:
        received.append(number)
        send(number)

    def suspend(number: int, _: object) -> None:  # Ctrl-Z
        send(number)
        os.kill(os.getpid(), signal.SIGSTOP)
        send(signal.SIGCONT)  # this process goes on again

    handled = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, suspend if number == signal.SIGTSTP else forward) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_logged(command: Sequence[str], *, log: Path) -> int:
    """Run fairseq-train to its end, show its output and append it to a file.

    Signals are forwarded, so the command ends or saves its state as if it had been started directly. It dies with this
    process.

    Args:
        command: program and arguments.
        log: file, in a directory that exists.

    Returns:
        exit status as in a shell: 128 plus the number of a signal that ended the command.

    Raises:
        OSError: if no process can be started, or the output cannot be shown.
    """
    # The command writes to the file itself, so that no line is lost if this process is stopped or killed.
    with log.open("ab") as file, log.open("rb") as written:
        written.seek(0, os.SEEK_END)
        # In its own group, the command gets an interrupt from the keyboard once: forwarded, and not from the terminal.
        process = start_tied(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=training_environment(),
            process_group=0,
        )
        with process, forwarded_to([process]):
            try:
                has_ended = False
                while not has_ended:
                    time.sleep(LONGEST_WAIT)
                    has_ended = process.poll() is not None
                    sys.stdout.buffer.write(written.read())
                    sys.stdout.buffer.flush()
            except BaseException:
                process.terminate()
                raise
    return exit_status(process)


TUNABLES = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432:glibc.malloc.tcache_count=0"
"""Value of ``GLIBC_TUNABLES`` for training.

``trim_threshold``: keep up to 1 GiB of freed memory. By default the C library returns the memory of an update to the
system and gets new pages for the next one, which takes 10 to 25 % of a language model's time on a CPU.

``mmap_threshold``: 32 MiB. The default grows to that by itself, but not with a fixed ``trim_threshold``.

``tcache_count``: no cache of small freed blocks for each thread. An aligned block leaves two small remainders. If the
cache hands them out again, the large block between them cannot be merged and reused: with DRILL, blocks of 16 MB pile
up.
"""

ALLOCATOR_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables by which a user configures the allocator."""


COMMAND_VARIABLE = "FAIRSEQ_PLUGINS_TYPED"
"""Environment variable that holds the command by which a run was started. An interrupted run prints it."""

IN_UTF_8 = {"PYTHONIOENCODING": "utf-8:surrogateescape"}
"""Environment of programs of fairseq. Their output is read as UTF-8, whatever the encoding of the user's locale."""


def training_environment() -> Dict[str, str]:
    """Environment of a run: this process's, with :data:`COMMAND_VARIABLE`, :data:`IN_UTF_8` and ``GLIBC_TUNABLES``.

    ``GLIBC_TUNABLES`` is not set if the user has set any of :data:`ALLOCATOR_VARIABLES`, even to nothing, or if the C
    library is not glibc. It is only read at the start of a process, so it cannot be set in the process that trains.
    """
    program = Path(sys.argv[0])
    name = "fairseq-plugins" if program.name == "__main__.py" else program.name
    environment = {**os.environ, **IN_UTF_8, COMMAND_VARIABLE: shlex.join([name, *sys.argv[1:]])}
    set_by_user = any(name in os.environ for name in ALLOCATOR_VARIABLES)
    if set_by_user or platform.libc_ver()[0] != "glibc":
        return environment
    return {**environment, "GLIBC_TUNABLES": TUNABLES}


USER_ERROR_LINE = re.compile(r"error: |\S+: error: ")
"""Start of the last line of a program after a user error, of this package or of argparse."""

TRACEBACK = "Traceback (most recent call last):"
"""A line above this last line if the program has a fault."""

NUM_SHOWN_LINES = 5
"""Lines of a log that are shown if a program fails."""


def fairseq_command(program: str, arguments: Sequence[str]) -> List[str]:
    """The command line of a program of fairseq, "train" or "generate", for the running interpreter."""
    return [sys.executable, "-m", f"fairseq_cli.{program}", *arguments]


def run_fairseq(program: str, arguments: Sequence[str], *, log: Path, output: Optional[Path] = None) -> float:
    """Run a program of fairseq to its end; fairseq-train gets the allocator of :func:`training_environment`.

    It dies with this process.

    Args:
        program: "train" or "generate".
        arguments: of the program.
        log: file for its standard error; it is replaced.
        output: file for its standard output; None means the log.

    Returns:
        peak resident memory of the process in MiB. Linux counts at least the memory of this process at its start.

    Raises:
        SystemExit: after a signal, with its status as in a shell.
        UserError: if the program ended with a user error; the message adds the log.
        ProgramFailed: if it failed in another way, with the last lines of the log.
    """
    with ExitStack() as files:
        errors = files.enter_context(log.open("wb"))
        results = errors if output is None else files.enter_context(output.open("wb"))
        environment = training_environment() if program == "train" else {**os.environ, **IN_UTF_8}
        process = start_tied(fairseq_command(program, arguments), stdout=results, stderr=errors, env=environment)
        try:
            # SIGINT is not among them: an interrupt from the keyboard reaches both processes
            with forwarded_to([process], signals=(signal.SIGTERM, signal.SIGHUP)) as signals:
                while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
                    time.sleep(LONGEST_WAIT)
        except BaseException:
            process.kill()
            process.wait()
            raise
    _, status, usage = waited
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 and signals:
        raise SystemExit(128 + signals[0])
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines and USER_ERROR_LINE.match(lines[-1]) and TRACEBACK not in lines:
            raise UserError(f"{USER_ERROR_LINE.sub('', lines[-1], count=1)} (log: {log})")
        ended = f"fairseq-{program} ended with status {exit_status(process)}"
        if process.returncode == -signal.SIGKILL:
            ended += ": it was killed, perhaps because memory ran out"
        is_told = lines and process.returncode > 0
        raise ProgramFailed("\n".join([*lines[-NUM_SHOWN_LINES:], *([] if is_told else [ended])]))
    return usage.ru_maxrss / 1024


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command among others.

    Attributes:
        name: for messages.
        command: program and arguments.
        needs: names of the jobs that must have succeeded before it starts.
    """

    name: str
    command: Sequence[str]
    needs: Collection[str] = ()


def _read_lines(name: str, output: IO[bytes], show: Callable[[str, str], None]) -> None:
    with output:
        for line in output:
            show(name, line.decode("utf-8", errors="replace"))


def run_side_by_side(
    jobs: Sequence[Job], *, places: Sequence[Mapping[str, str]], show: Callable[[str, str], None]
) -> Dict[str, int]:
    """Run commands in parallel, each as soon as a place is free and the jobs that it needs have succeeded.

    Their standard error is shown. If one fails, only those that need it are skipped. Signals are forwarded to all that
    run, and no other starts after one. All die with this process.

    Args:
        jobs: with unique names, in the order of their start.
        places: as many as run at once. Each has variables that are added to the environment of its commands.
        show: gets the name of a job and a line of its standard output, in a thread of the job.

    Returns:
        exit status as in a shell, by name, of all jobs that were started.

    Raises:
        SystemExit: after a signal, with its status as in a shell, if no job failed by it.
    """
    waiting = list(jobs)
    place_of: Dict[str, int] = {}
    running: Dict[str, subprocess.Popen[bytes]] = {}
    statuses: Dict[str, int] = {}
    started_at: Dict[str, float] = {}
    readers: Dict[str, Thread] = {}
    with forwarded_to(running.values()) as signals:
        try:
            while True:
                for name, process in list(running.items()):
                    if process.poll() is not None:
                        statuses[name] = status = exit_status(running.pop(name))
                        readers.pop(name).join(timeout=1)
                        hours = (time.monotonic() - started_at[name]) / 3600
                        end = f"ended after {hours:.2f} hours" if status == 0 else f"ended with status {status}"
                        print(f"== {name} {end}", file=sys.stderr, flush=True)
                ready = [job for job in waiting if all(statuses.get(name) == 0 for name in job.needs)]
                for job in ready[: len(places) - len(running)]:
                    if signals:
                        break
                    waiting.remove(job)
                    started_at[job.name] = time.monotonic()
                    print(f"== {job.name} begins ({len(started_at)} of {len(jobs)})", file=sys.stderr, flush=True)
                    place_of[job.name] = place = min({*range(len(places))} - {place_of[name] for name in running})
                    running[job.name] = process = start_tied(
                        job.command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        process_group=0,
                        env={**os.environ, **places[place]},
                    )
                    readers[job.name] = Thread(target=_read_lines, args=(job.name, process.stdout, show), daemon=True)
                    readers[job.name].start()
                    for number in signals:  # that arrived while it was started
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
