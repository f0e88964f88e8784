"""A program of the host, such as ``fairseq-train``, in a process of its own."""

import os
import re
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import List, Optional, Sequence

import fairseq_plugins
from fairseq_plugins.flags.command import ProgramFailed
from fairseq_plugins.programs.allocator import training_environment
from fairseq_plugins.programs.logged_process import LONGEST_WAIT, forwarded_to, start_tied

USER_DIR = Path(fairseq_plugins.__file__).resolve().parent
"""Value of ``--user-dir``."""

WRONGLY_GIVEN = re.compile(r"ValueError: |\S+: error: ")
"""Begins the last line of a program that was stopped by what the user gave wrongly; the second is argparse's."""

TRACEBACK = "Traceback (most recent call last):"
"""A line above it where that error was a fault of the program."""

NUM_TOLD_LINES = 5
"""Of a log, that are told where a program fails."""


def host_command(program: str, arguments: Sequence[str]) -> List[str]:
    """The command line of a program of the host, "train" or "generate", in the running interpreter."""
    return [sys.executable, "-m", f"fairseq_cli.{program}", *arguments]


def run_host(program: str, arguments: Sequence[str], *, log: Path, output: Optional[Path] = None) -> float:
    """Run a program of the host to its end; a training gets the allocator of :func:`training_environment`.

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
        process = start_tied(host_command(program, arguments), stdout=results, stderr=errors, env=environment)
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
