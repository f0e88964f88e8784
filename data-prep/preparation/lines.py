"""Lines of text: reading with the place of an error, writing, and work on a stream of lines in parallel.

A line ends at LF only. Other characters at which some programs break lines (CR, U+0085, U+2028 ...) become spaces, so
that all readers of the files count alike.

Everything is a stream: a bounded number of lines is in memory, whatever the length of a file.
"""

import importlib.util
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

# Commands of the package read raw text by the same code. It is loaded by its path, because importing the package takes
# seconds.
_TOKENIZERS = Path(__file__).resolve().parents[2] / "fairseq_plugins" / "evaluation" / "tokenizers.py"
_spec = importlib.util.spec_from_file_location(f"{__package__}.tokenizers", _TOKENIZERS)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
ESCAPES, HUGGING_FACE, moses_language = _module.ESCAPES, _module.HUGGING_FACE, _module.moses_language
Tokenizer, TokenizerError, TokenSigns = _module.Tokenizer, _module.TokenizerError, _module.TokenSigns
clean, composed = _module.clean, _module.composed
load_tokenizer, split_words = _module.load_tokenizer, _module.split_words
LONGEST_WORD, stretches, split_in_stretches = _module.LONGEST_WORD, _module.stretches, _module.split_in_stretches

CHUNK = 500  # items that a process works on at a time
CHUNKS_AHEAD = 3  # chunks of a process: one being worked on, one waiting for it, one waiting for the reader

Row = tuple[str, ...]  # one line, or a line of the source and its translation

PASS_OTHERS = "pass the right files with --from DIR, or delete a downloaded file and run again"
TO_UTF_8 = "convert it to UTF-8, such as by iconv -f WINDOWS-1252 (or UTF-16) -t UTF-8"
WITHOUT_NUL = "convert it by iconv -f UTF-16 -t UTF-8 if it is UTF-16, else remove the bytes by tr -d '\\0'"


class DataError(Exception):
    """A user error: of files, options or the machine. The text is the whole message."""


class MissingFiles(DataError):
    """A folder lacks files of the corpus."""

    def __init__(self, folder: Path, files: str, remedy: str = "put it there, or leave out --from to download") -> None:
        super().__init__(f"{folder} has no {files}: {remedy}")


def note(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr, flush=True)


tqdm.monitor_interval = 0  # no thread, so that processes can be forked safely


def progress(items: Iterable, **options: Any) -> tqdm:
    """A progress bar on a terminal, nothing elsewhere."""
    return tqdm(items, disable=None, mininterval=0.5, **options)


def decode_lines(stream: Iterable[bytes], name: object) -> Iterator[str]:
    """Cleaned lines of a binary file. ``name`` is its name in messages."""
    for number, line in enumerate(stream, 1):
        if number == 1 and line.startswith(b"\x1f\x8b"):
            raise DataError(f"{name} is compressed by gzip: give its name the ending .gz")
        if number == 1 and b"\n" not in line and b"\r" in line.rstrip(b"\r"):  # the whole text would be one line
            raise DataError(f"{name}: its lines end in carriage returns, not in newlines: convert it by tr '\\r' '\\n'")
        if number <= 2 and b"\0" in line:  # UTF-16 of ASCII is valid UTF-8
            raise DataError(f"{name}:{number}: there is a NUL byte: {WITHOUT_NUL}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"byte {error.start + 1} of the line"
            raise DataError(f"{name}:{number}: not UTF-8 text ({where}): {TO_UTF_8}") from None
        yield clean(text.removeprefix("\ufeff"))  # also where files were joined


def aligned(sources: Iterable[str], targets: Iterable[str], source_name: object, target_name: object) -> Iterator[Row]:
    """Pairs of two sides. DataError at the end unless they have the same number of lines, at least one."""
    sides = iter(sources), iter(targets)
    count = 0
    for pair in itertools.zip_longest(*sides):
        if None in pair:
            rest = 1 + sum(1 for _ in sides[pair[0] is None])
            longer, shorter = (source_name, target_name) if pair[1] is None else (target_name, source_name)
            if not count:
                raise DataError(f"{shorter} is empty")
            raise DataError(
                f"{longer}:{count + 1}: no line to pair with in {shorter} ({count + rest} lines against {count})"
            )
        count += 1
        yield pair
    if not count:
        raise DataError(f"{source_name} is empty")


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a file that ``write_lines`` or ``write_rows`` wrote."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def read_rows(folder: Path, split: str, sides: Sequence[str]) -> Iterator[Row]:
    """Rows of a split, which has one file a side."""
    paths = [folder / f"{split}.{side}" for side in sides]
    if len(paths) == 1:
        return ((line,) for line in read_lines(paths[0]))
    source, target = paths
    return aligned(read_lines(source), read_lines(target), source, target)


class RowWriter:
    """Writes the files of a split, one a side, and counts rows in ``num_rows``."""

    def __init__(self, folder: Path, split: str, sides: Sequence[str]) -> None:
        self.paths = [folder / f"{split}.{side}" for side in sides]
        self.num_rows = 0

    def __enter__(self) -> Self:
        self.files = [open(path, "w", encoding="utf-8", newline="\n") for path in self.paths]
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files:
            file.close()

    def write(self, row: Row) -> None:
        """Write a line to each file."""
        for file, line in zip(self.files, row, strict=True):
            file.write(f"{line}\n")
        self.num_rows += 1


def write_rows(folder: Path, split: str, sides: Sequence[str], rows: Iterable[Row]) -> int:
    """Write the files of a split. Returns the number of rows."""
    with RowWriter(folder, split, sides) as writer:
        for row in rows:
            writer.write(row)
    return writer.num_rows


# Work in processes


def on_each_side(build: Callable[..., Callable[[str], str]], arguments: Iterable[tuple]) -> Callable[[Row], Row]:
    """A function of rows that applies ``build(*arguments)`` of each side to its line."""
    functions = [build(*each) for each in arguments]
    return lambda row: tuple(function(line) for function, line in zip(functions, row, strict=True))


_work: Callable[[Any], Any]  # of a worker process, made once by _start_worker


def _start_worker(build: Callable[..., Callable], arguments: tuple) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _work = build(*arguments)


def _leave_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work_on(items: list) -> list:
    return [_work(item) for item in items]


def map_in_order(
    build: Callable[..., Callable],
    arguments: tuple,
    items: Iterable,
    *,
    workers: int,
    label: str,
    total: int | None = None,
) -> Iterator:
    """Apply a function to every item and keep the order. ``build(*arguments)`` makes it once in each process.

    ``items`` is read at most CHUNKS_AHEAD chunks a process ahead of what was yielded.
    """
    items = iter(items)
    chunks = iter(lambda: list(itertools.islice(items, CHUNK)), [])
    first = list(itertools.islice(chunks, 2))
    with progress(None, total=total, desc=label, unit=" lines") as bar:
        if workers <= 1 or len(first) < 2:
            function = build(*arguments)
            parts = ([function(item) for item in chunk] for chunk in itertools.chain(first, chunks))
        else:
            parts = _in_processes(build, arguments, itertools.chain(first, chunks), workers, label)
        for part in parts:
            yield from part
            bar.update(len(part))


def _in_processes(
    build: Callable[..., Callable], arguments: tuple, chunks: Iterator[list], workers: int, label: str
) -> Iterator[list]:
    pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(build, arguments))
    try:
        running = deque(pool.submit(_work_on, chunk) for chunk in itertools.islice(chunks, CHUNKS_AHEAD * workers))
        while running:
            part = running.popleft().result()
            running.extend(pool.submit(_work_on, chunk) for chunk in itertools.islice(chunks, 1))
            yield part
    except BrokenProcessPool:
        raise DataError(f"a process ended while {label} (out of memory?): run again with --workers 1") from None
    finally:
        pool.shutdown(cancel_futures=True)
