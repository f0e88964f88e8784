"""Run a command and print its wall-clock and processor time, and the peak of its processes' memory together.

``python tests/data_prep/measure.py COMMAND [ARGUMENT]...``. Memory is the sum of the resident sets of all descendants,
twice a second; pages that forked processes share count for each of them, so that the true figure is lower.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def memory_of_tree(root: int) -> dict[int, int]:
    """Resident bytes of a process and its descendants."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)], sizes[int(folder.name)] = int(fields[1]), int(fields[21])
    tree, found = {root}, {root}
    while found:
        found = {process for process, parent in parents.items() if parent in found} - tree
        tree |= found
    return {process: sizes.get(process, 0) * os.sysconf("SC_PAGE_SIZE") for process in tree}


def main(command: list[str]) -> int:
    """The command's exit status."""
    start = time.monotonic()
    peak, peak_processes, peak_time = 0, 0, 0.0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            sizes = memory_of_tree(process.pid)
            if sum(sizes.values()) > peak:
                peak, peak_processes, peak_time = sum(sizes.values()), len(sizes), time.monotonic() - start
            time.sleep(0.5)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"wall clock {time.monotonic() - start:.0f} s, processor {usage.ru_utime + usage.ru_stime:.0f} s, "
        f"peak memory {peak / 2**20:.0f} MiB in {peak_processes} processes after {peak_time:.0f} s",
        flush=True,
    )
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
