"""Text files of trees, line by line, compressed or not."""

import gzip
import zlib
from pathlib import Path
from typing import Iterator, Tuple


def numbered_lines(path: Path) -> Iterator[Tuple[int, str]]:
    """Number, from 1, and text of each line; a name that ends in ``.gz`` is decompressed.

    Raises:
        ValueError: if the file is missing; on the way if it is damaged or a line is not UTF-8.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    return _decoded_lines(path)


def _decoded_lines(path: Path) -> Iterator[Tuple[int, str]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8: {error.reason}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is truncated or damaged after line {number} ({error}): copy it again") from error
