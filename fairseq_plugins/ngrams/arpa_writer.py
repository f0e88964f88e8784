"""Writing ARPA files."""

import gzip
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

import numpy as np
from tqdm import tqdm

from fairseq_plugins.flags.written_file import replaced_file
from fairseq_plugins.ngrams.arpa_rows import LOG_ZERO, ArpaRows

COMPRESSION = 6
"""Of gzip, from 1 to 9."""


def write_rows(
    path: Path, rows: Iterable[ArpaRows], *, symbols: Sequence[str], sizes: Sequence[int], show_progress: bool = False
) -> None:
    """Write a file, compressed where its name ends in ``.gz``; equal models give equal files.

    Args:
        path: of the file.
        rows: the orders in turn, each in one piece or several.
        symbols: the words of the dictionary.
        sizes: how many n-grams each order has.
        show_progress: draw a bar.

    Raises:
        OSError: if the file cannot be written.
    """
    names = np.array(symbols, dtype=object)
    order = 0
    with (
        replaced_file(path) as aside,
        _opened(aside) as file,
        tqdm(total=sum(sizes), desc=f"writing {path.name}", unit="n-gram", disable=not show_progress) as progress,
    ):
        file.write("\\data\\\n" + "".join(f"ngram {k}={size}\n" for k, size in enumerate(sizes, 1)))
        for piece in rows:
            if piece.order > order:
                order = piece.order
                file.write(f"\n\\{order}-grams:\n")
            file.writelines(_lines(piece, names, with_backoffs=order < len(sizes)))
            progress.update(len(piece.words))
        file.write("\n\\end\\\n")


def _lines(rows: ArpaRows, names: Any, *, with_backoffs: bool) -> Iterator[str]:
    first, *others = (names[column] for column in rows.words.T.numpy())
    texts = sum((" " + word for word in others), first)  # of a whole column at a time
    log_probs = rows.log10_probs.clamp(min=LOG_ZERO).tolist()
    if not with_backoffs:
        return (f"{prob:.9g}\t{text}\n" for prob, text in zip(log_probs, texts))
    backoffs = rows.log10_backoffs.tolist()
    return (f"{prob:.9g}\t{text}\t{backoff:.9g}\n" for prob, text, backoff in zip(log_probs, texts, backoffs))


@contextmanager
def _opened(path: Path) -> Iterator[TextIOWrapper]:
    """A text file. A compressed one holds neither its name nor the time."""
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed,
        TextIOWrapper(packed, encoding="utf-8", newline="\n") as file,
    ):
        yield file
