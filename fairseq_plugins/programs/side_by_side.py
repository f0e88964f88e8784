"""Commands that run side by side."""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Collection, Dict, List, Sequence

from fairseq_plugins.programs.logged_process import LONGEST_WAIT, exit_status, forwarded_to, start_tied


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
