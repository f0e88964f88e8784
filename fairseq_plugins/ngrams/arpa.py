"""ARPA files: n-gram models as text, which KenLM, SRILM and others read and write.

A file has, for each order, a line for each n-gram: the logarithm to base 10 of its probability, its words, and the
logarithm of its back-off weight, which may be left out if it is zero.
"""

import codecs
import gzip
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NoReturn, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.files import byte_lines, replaced_file
from fairseq_plugins.options import UserError

LOG_ZERO = -99.0
"""The logarithm of a probability of zero in files."""


@dataclass(frozen=True)
class ArpaRows:
    """N n-grams of order k: words (N, k) int64, logarithms to base 10 of their probabilities and back-off weights.

    Both logarithms are (N,) float64; -inf stands for a probability of zero, and weights of the highest order are zero.
    """

    words: Tensor
    log10_probs: Tensor
    log10_backoffs: Tensor

    @property
    def order(self) -> int:
        """k."""
        return self.words.shape[1]


LINES_AT_ONCE = 2**16
"""Lines that are in memory as text at a time."""

_SIZE = re.compile(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})")
_OUTSIDE = -1


def read_orders(path: Path, symbols: Sequence[str]) -> Iterator[ArpaRows]:
    """Read a file, compressed by gzip or not, one order at a time, from unigrams up.

    n-grams with words that the dictionary, ``symbols``, lacks are left out. Raises UserError if the file is missing,
    damaged, or of another format; the message names the line.
    """
    lines = byte_lines(path, wanted="an ARPA file; ngram train writes one, KenLM's lmplz as well")
    numbers = {symbol.encode(): number for number, symbol in enumerate(symbols)}
    yield from _ArpaLines(lines, path).orders(numbers)


class _ArpaLines:
    """A parser that counts lines for error messages."""

    def __init__(self, lines: Iterable[bytes], path: Path) -> None:
        self._lines = iter(lines)
        self._path = path
        self._num_read = 0

    def orders(self, numbers: Dict[bytes, int]) -> Iterator[ArpaRows]:
        """See :func:`read_orders`."""
        if not any(line.removeprefix(codecs.BOM_UTF8).strip() == b"\\data\\" for line in self._counted()):
            raise UserError(
                f"{self._path} is no ARPA file: it has no line \\data\\: give the .arpa file, not a binary made of it"
            )
        line, sizes = self._read_sizes()
        with progress(total=sum(sizes), desc=f"reading {self._path.name}", unit="n-gram") as bar:
            for order, size in enumerate(sizes, 1):
                self._check(line, f"\\{order}-grams:")
                pieces = [self._read_rows(order, numbers, num_lines=0)]
                for begin in range(0, size, LINES_AT_ONCE):
                    pieces.append(self._read_rows(order, numbers, num_lines=min(size - begin, LINES_AT_ONCE)))
                    bar.update(min(size - begin, LINES_AT_ONCE))
                yield ArpaRows(
                    words=torch.cat([piece.words for piece in pieces]),
                    log10_probs=torch.cat([piece.log10_probs for piece in pieces]),
                    log10_backoffs=torch.cat([piece.log10_backoffs for piece in pieces]),
                )
                line = self._next()
        self._check(line, "\\end\\")

    def _read_sizes(self) -> Tuple[bytes, List[int]]:
        """The line after the sizes of the orders, and the sizes."""
        sizes: List[int] = []
        while match := _SIZE.fullmatch(line := self._next()):
            if int(match[1]) != len(sizes) + 1:
                self._refuse(f"expected the size of order {len(sizes) + 1}")
            sizes.append(int(match[2]))
        if not sizes:
            self._refuse("expected ngram 1=, the number of unigrams")
        return line, sizes

    def _read_rows(self, order: int, numbers: Dict[bytes, int], *, num_lines: int) -> ArpaRows:
        """The n-grams of the next lines, except n-grams with words outside of the dictionary."""
        words: List[int] = []
        log_probs: List[float] = []
        log_backoffs: List[float] = []
        for line in islice(self._counted(), num_lines):
            fields = line.split()
            try:
                log_prob, log_backoff = float(fields[0]), float(fields[order + 1]) if len(fields) > order + 1 else 0.0
            except (IndexError, ValueError):
                log_prob = log_backoff = math.nan
            if not (order + 1 <= len(fields) <= order + 2 and log_prob <= 0 and math.isfinite(log_backoff)):
                self._refuse(f"expected a logarithm of at most 0, {order} words, and a back-off weight, if any")
            words.extend([numbers.get(word, _OUTSIDE) for word in fields[1 : order + 1]])
            log_probs.append(log_prob if log_prob > LOG_ZERO else -math.inf)
            log_backoffs.append(log_backoff)
        if len(log_probs) < num_lines:
            self._refuse(f"expected more {order}-grams after it")
        rows = torch.from_numpy(np.array(words, dtype=np.int64)).view(-1, order)
        inside = (rows != _OUTSIDE).all(dim=1)
        return ArpaRows(
            words=rows[inside],
            log10_probs=torch.from_numpy(np.array(log_probs))[inside],
            log10_backoffs=torch.from_numpy(np.array(log_backoffs))[inside],
        )

    def _counted(self) -> Iterator[bytes]:
        for line in self._lines:
            self._num_read += 1
            yield line

    def _next(self) -> bytes:
        """The next line that is not blank; nothing at the end of the file."""
        return next(filter(None, map(bytes.strip, self._counted())), b"")

    def _check(self, line: bytes, expected: str) -> None:
        if line != expected.encode():
            self._refuse(f"expected {expected}")

    def _refuse(self, wrong: str) -> NoReturn:
        raise UserError(f"{self._path}, line {self._num_read}: damaged: {wrong}")


COMPRESSION = 6
"""Level of gzip."""


def write_rows(path: Path, rows: Iterable[ArpaRows], *, symbols: Sequence[str], sizes: Sequence[int]) -> None:
    """Write a file, compressed if its name ends in ``.gz``. Equal models give equal files.

    Rows are the orders in turn, each in one piece or several; ``sizes`` are the numbers of n-grams of the orders.
    Raises OSError if the file cannot be written.
    """
    names = np.array(symbols, dtype=object)
    order = 0
    with (
        replaced_file(path) as aside,
        _opened(aside) as file,
        progress(total=sum(sizes), desc=f"writing {path.name}", unit="n-gram") as bar,
    ):
        file.write("\\data\\\n" + "".join(f"ngram {k}={size}\n" for k, size in enumerate(sizes, 1)))
        for piece in rows:
            if piece.order > order:
                order = piece.order
                file.write(f"\n\\{order}-grams:\n")
            file.writelines(_lines(piece, names, with_backoffs=order < len(sizes)))
            bar.update(len(piece.words))
        file.write("\n\\end\\\n")


def _lines(rows: ArpaRows, names: Any, *, with_backoffs: bool) -> Iterator[str]:
    first, *others = (names[column] for column in rows.words.T.numpy())
    texts = sum((" " + word for word in others), first)  # object arrays: a whole column at a time
    log_probs = rows.log10_probs.clamp(min=LOG_ZERO).tolist()
    if not with_backoffs:
        return (f"{prob:.9g}\t{text}\n" for prob, text in zip(log_probs, texts))
    backoffs = rows.log10_backoffs.tolist()
    return (f"{prob:.9g}\t{text}\t{backoff:.9g}\n" for prob, text, backoff in zip(log_probs, texts, backoffs))


@contextmanager
def _opened(path: Path) -> Iterator[TextIOWrapper]:
    """A text file. A compressed one contains neither its name nor the time, so that equal models give equal files."""
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
