"""Lines of text as they come, without waiting for the end of the file."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Iterator, Sequence

from fairseq_plugins.evaluation.generated_text import STANDARD_INPUT, name_of


def stream_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Lines of files that are read as one text, split at newlines only; ``-`` is the standard input.

    Raises:
        ValueError: at once if a file is missing; on the way if a line is not UTF-8; at the end if there was no line.
    """
    for path in paths:
        if path != STANDARD_INPUT and not path.is_file():
            raise ValueError(f"{path} does not exist")
    return _lines_of(paths)


def _lines_of(paths: Sequence[Path]) -> Iterator[str]:
    num_lines = 0
    for path in paths:
        with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                num_lines += 1
                try:
                    yield line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{name_of(path)}, line {number}: not UTF-8: {error.reason}") from error
    if not num_lines:
        raise ValueError(f"{name_of(*paths)} is empty: give a sentence a line")
