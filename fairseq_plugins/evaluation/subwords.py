"""Learnt ways to split words into pieces, which data-prep leaves beside the binaries."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Type

from sentencepiece import SentencePieceProcessor
from subword_nmt.apply_bpe import BPE


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
    """Codes of subword-nmt: a piece that ends in ``@@`` goes on in the next."""

    kind = "subword_nmt"

    def __init__(self, path: Path):
        with path.open(encoding="utf-8", newline="\n") as file:
            self.codes = BPE(file)

    def split(self, words: str) -> List[str]:
        return self.codes.segment(words).split()

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
