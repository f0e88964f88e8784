"""Lines of text as they come, without waiting for the end of the file."""

from pathlib import Path
from typing import Iterator, Literal, NoReturn, Sequence

from fairseq_plugins.data.text_files import STANDARD_INPUT, check_file, name_of, numbered_lines


def stream_lines(paths: Sequence[Path], *, when_empty: Literal["refused", "kept"] = "refused") -> Iterator[str]:
    """Lines of files that are read as one text, split at newlines only; files may be compressed by gzip.

    Args:
        paths: ``-`` is the standard input.
        when_empty: what becomes of a text without a line.

    Raises:
        ValueError: at once if a file is missing; on the way if a file is damaged or a line is not UTF-8; at the end if
            there was no line, unless that is kept.
    """
    for path in paths:
        if path != STANDARD_INPUT:
            check_file(path, wanted="a text file")
    return _lines_of(paths, when_empty=when_empty)


def _lines_of(paths: Sequence[Path], *, when_empty: str) -> Iterator[str]:
    is_empty = True
    for path in paths:
        for _, line in numbered_lines(path):
            is_empty = False
            yield line
    if is_empty and when_empty == "refused":
        raise_empty(paths)


def raise_empty(paths: Sequence[Path]) -> NoReturn:
    """Refuse texts that have no line."""
    raise ValueError(f"{name_of(*paths)} is empty: give a sentence a line")
