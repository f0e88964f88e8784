"""Learnt ways to split words into pieces, which data-prep leaves beside the binaries."""

import io
from abc import ABC, abstractmethod
from contextlib import redirect_stderr
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Type

from sentencepiece import SentencePieceProcessor
from subword_nmt.apply_bpe import BPE

LONGEST_WORD = 1000
"""Characters of a word that codes of subword-nmt are applied to at a time."""

MOST_CACHED_WORDS = 100_000
"""Words whose pieces are remembered at most."""


class Subwords(ABC):
    """A learnt way to split words.

    Attributes:
        kind: the host's name for it, in ``--remove-bpe``.
    """

    kind: ClassVar[str]

    @abstractmethod
    def __init__(self, path: Path): ...

    @abstractmethod
    def split(self, words: str) -> List[str]:
        """Pieces of words with spaces between them."""

    @abstractmethod
    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        """The pieces of each word, without the marks that join them."""


class SubwordNMT(Subwords):
    """Codes of subword-nmt: a piece that ends in ``@@`` goes on in the next.

    Of a word above :data:`LONGEST_WORD` characters, each such stretch is split by itself, because the time for a word
    grows faster than its length.
    """

    kind = "subword_nmt"

    def __init__(self, path: Path):
        with path.open(encoding="utf-8", newline="\n") as file:
            self.codes = BPE(file)

    def split(self, words: str) -> List[str]:
        if len(self.codes.cache) > MOST_CACHED_WORDS:
            self.codes.cache = {}  # another thread may read from the former
        if max(map(len, words.split(" "))) <= LONGEST_WORD:
            return self.codes.segment(words).split()
        return [piece for word in words.split(" ") for piece in self._split_word(word)]

    def _split_word(self, word: str) -> List[str]:
        stretches = [word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD)]
        pieces = [self.codes.segment(stretch).split() for stretch in stretches]
        found = [stretch for stretch in pieces if stretch]
        for goes_on in found[:-1]:
            goes_on[-1] += "@@"
        return [piece for stretch in found for piece in stretch]

    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        words: List[List[str]] = []
        goes_on = False
        for piece in pieces:
            if not goes_on:
                words.append([])
            goes_on = piece.endswith("@@")
            words[-1].append(piece.removesuffix("@@"))
        return words


class SentencePiece(Subwords):
    """A model of sentencepiece: a piece that begins with its mark begins a word."""

    kind = "sentencepiece"
    MARK = "\u2581"

    def __init__(self, path: Path):
        self.model = SentencePieceProcessor(model_file=str(path))

    def split(self, words: str) -> List[str]:
        return self.model.encode(words.replace(self.MARK, "_"), out_type=str)

    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        words: List[List[str]] = []
        for piece in pieces:
            if piece.startswith(self.MARK) or not words:
                words.append([])
            words[-1].append(piece.removeprefix(self.MARK))
        return words


SUBWORD_FILES: Dict[str, Type[Subwords]] = {
    "bpe.codes": SubwordNMT,
    "sentencepiece.bpe.model": SentencePiece,
    "sentencepiece.unigram.model": SentencePiece,
}
"""Names under which data-prep leaves what was learnt."""


def find_subwords(data: Path) -> Optional[Path]:
    """The codes or model of subwords that data-prep left in ``data``, or None.

    Raises:
        ValueError: if there are several.
    """
    found = [name for name in SUBWORD_FILES if (data / name).is_file()]
    if len(found) > 1:
        raise ValueError(f"{data} has {' and '.join(found)}: leave the one that its text was split with")
    return data / found[0] if found else None


def subword_kind(data: Path) -> str:
    """The kind of subwords that data-prep left in ``data``, as ``--remove-bpe`` takes it; ``subword_nmt`` without any.

    Raises:
        ValueError: if there are several.
    """
    path = find_subwords(data)
    return SubwordNMT.kind if path is None else SUBWORD_FILES[path.name].kind


def load_subwords(path: Path) -> Subwords:
    """What was learnt, by the name under which data-prep leaves it.

    Args:
        path: as :func:`find_subwords` gives it.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        with redirect_stderr(io.StringIO()):  # subword-nmt prints and ends the process
            return SUBWORD_FILES[path.name](path)
    except (ValueError, RuntimeError, SystemExit) as error:
        raise ValueError(
            f"{path} is damaged: copy it again, or run the corpus' data-prep/<corpus>/prepare.sh again"
        ) from error
