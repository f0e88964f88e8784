"""Lines of text: reading with the place of an error, writing, and work on many lines in parallel.

A line ends at LF and nowhere else. The other characters at which some programs break a line (CR, U+0085, U+2028 ...)
become spaces, so that no reader of the files written here can count differently.
"""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from .errors import DataError

CHUNK = 500  # lines that a process works on at a time
BREAKS = re.compile("[\0\r\v\f\x1c-\x1e\x85\u2028\u2029]")

tqdm.monitor_interval = 0  # no thread, so that processes can be forked safely


class Pair(NamedTuple):
    """The two sides of a parallel text, line by line."""

    source: list[str]
    target: list[str]


def progress(items: Iterable, **options: Any) -> tqdm:
    """A progress bar on a terminal, nothing elsewhere."""
    return tqdm(items, disable=None, mininterval=0.5, **options)


def clean(line: str) -> str:
    """``line`` without surrounding space and without characters that could break it."""
    return BREAKS.sub(" ", line).strip()


def decode_lines(stream: Iterable[bytes], name: object) -> Iterator[str]:
    """Cleaned lines of a binary file; ``name`` is the file's in an error message."""
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}:{number}: not UTF-8 text (byte {error.start + 1} of the line)") from None
        yield clean(text.removeprefix("\ufeff") if number == 1 else text)


def check_aligned(pair: Pair, source_name: object, target_name: object) -> Pair:
    """``pair`` itself if its sides have the same number of lines, at least one."""
    source, target = map(len, pair)
    if not source:
        raise DataError(f"{source_name} is empty")
    if source != target:
        longer, shorter = (source_name, target_name) if source > target else (target_name, source_name)
        raise DataError(
            f"{longer}:{min(source, target) + 1}: no line to pair with in {shorter} "
            f"({max(source, target)} lines against {min(source, target)})"
        )
    return pair


def read_lines(path: Path) -> list[str]:
    """Lines of a file that ``write_lines`` wrote."""
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write one line each."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def read_pair(folder: Path, split: str, languages: tuple[str, str]) -> Pair:
    """The two files of a split."""
    return Pair(*(read_lines(folder / f"{split}.{language}") for language in languages))


def write_pair(folder: Path, split: str, languages: tuple[str, str], pair: Pair) -> None:
    """Write the two files of a split."""
    for language, lines in zip(languages, pair):
        write_lines(folder / f"{split}.{language}", lines)


_work: Callable[[str], str]


def _start_worker(build: Callable[..., Callable[[str], str]], arguments: tuple) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _work = build(*arguments)


def _leave_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work_on(lines: list[str]) -> list[str]:
    return [_work(line) for line in lines]


def map_lines(
    build: Callable[..., Callable[[str], str]], arguments: tuple, lines: list[str], *, workers: int, label: str
) -> list[str]:
    """Apply the function that ``build(*arguments)`` makes in each process to every line; the order is kept."""
    chunks = [lines[start : start + CHUNK] for start in range(0, len(lines), CHUNK)]
    workers = min(workers, len(chunks))
    done: list[str] = []
    with ExitStack() as stack:
        if workers <= 1:
            function = build(*arguments)
            parts = ([function(line) for line in chunk] for chunk in chunks)
        else:
            pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(build, arguments))
            parts = stack.enter_context(pool).map(_work_on, chunks)
        bar = stack.enter_context(progress(None, total=len(lines), desc=label, unit=" lines"))
        try:
            for part in parts:
                done += part
                bar.update(len(part))
        except BrokenProcessPool:
            raise DataError(f"a process ended while {label} (out of memory?): run again with --workers 1") from None
    return done
