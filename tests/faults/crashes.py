"""Processes that are killed where they change the file system."""

import os
import signal
import sys
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Tuple

from command_table import Tried, contents
from forks import Ended, in_fork, program

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
"""Audit events, beside opening to write, that change the file system; syncs have none."""


class Watch:
    """Counts the changes that this process makes to a folder, and kills it before one of them.

    Args:
        folder: changes elsewhere do not count.
        last: how many changes are made; None for all.
        log: takes a line for each.
    """

    def __init__(self, folder: Path, *, last: Optional[int], log: int):
        self._folder = os.fspath(folder)
        self._last = last
        self._log = log
        self._num_changes = 0

    def begin(self) -> None:
        """Watch this process from now on; there is no way back."""
        fsync = os.fsync

        def counted_fsync(descriptor) -> None:
            self._change("sync", os.readlink(f"/proc/self/fd/{getattr(descriptor, 'fileno', lambda: descriptor)()}"))
            fsync(descriptor)

        os.fsync = counted_fsync
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple) -> None:
        if event in CHANGES:
            self._change(event, arguments[0])
        elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._change("open to write", arguments[0])

    def _change(self, what: str, path: object) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        place = os.path.abspath(os.fsdecode(path))
        if not place.startswith(f"{self._folder}/"):
            return
        if self._num_changes == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self._num_changes += 1
        os.write(self._log, f"{what} {place.removeprefix(self._folder)}\n".encode())


class Undisturbed(NamedTuple):
    """The effect of a command where nothing happens to it.

    Attributes:
        changes: that it makes to its folder.
        longest: length of the longest file that it leaves, in bytes.
        result: what counts of what it has written.
    """

    changes: List[str]
    longest: int
    result: object


def run_undisturbed(writing: Tried, folder: Path) -> Undisturbed:
    """Run a command in a folder."""
    before = contents(folder)
    ended, changes = run_watched(program(writing.words), folder, stdin=writing.stdin)
    assert ended.status == 0, ended
    lengths = [(folder / path).stat().st_size for path, now in contents(folder).items() if before.get(path) != now]
    return Undisturbed(changes=changes, longest=max(lengths), result=writing.result(folder))


def run_watched(
    work: Callable[[], None], folder: Path, *, stdin: bytes, num_changes: Optional[int] = None
) -> Tuple[Ended, List[str]]:
    """Work that is killed when it has made so many changes to a folder, if a number is given, and its changes."""
    log = os.memfd_create("changes")

    def watched() -> None:
        Watch(folder, last=num_changes, log=log).begin()
        work()

    ended = in_fork(watched, folder=folder, stdin=stdin)
    changes = os.pread(log, os.fstat(log).st_size, 0).decode().splitlines()
    os.close(log)
    return ended, changes
