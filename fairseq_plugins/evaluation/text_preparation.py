"""Raw text as the subwords that a model reads, and subwords as raw text: what data-prep did to a corpus, and back.

A word is a token of Moses; a piece is a part of a word.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Type

from sacremoses import MosesDetokenizer, MosesTokenizer
from sentencepiece import SentencePieceProcessor
from subword_nmt.apply_bpe import BPE

RECORD = "prepared.txt"
"""What data-prep writes beside the binaries; its first line tells how they were made."""

SIDE_LANGUAGES = {"article": "en", "title": "en"}
"""Sides of headline corpora, with the language that their text is in."""


CASES: Dict[str, str] = {"lowercase tokens": "lower tokens", "lowercase": "lower lines"}
"""What the record says of case, and what it means; where it says nothing, case is kept."""


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


class TextPreparation:
    """How a corpus of pairs was prepared.

    Args:
        source, target: languages, such as "de" and "en".
        case: "kept", "lower tokens", or "lower lines" where the tokeniser reads lines in lower case.
        subwords: how words are split, on both sides.
    """

    def __init__(self, *, source: str, target: str, case: str, subwords: Subwords):
        self.case = case
        self.subwords = subwords
        self._tokenizer = MosesTokenizer(lang=SIDE_LANGUAGES.get(source, source))
        self._detokenizer = MosesDetokenizer(lang=SIDE_LANGUAGES.get(target, target))

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line of the source; none of a blank one."""
        text = line.lower() if self.case == "lower lines" else line
        words = " ".join(self._tokenizer.tokenize(text, escape=True))
        return self.subwords.split(words.lower() if self.case == "lower tokens" else words)

    def words(self, pieces: Sequence[str]) -> List[str]:
        """The words that pieces of either side make."""
        return ["".join(word) for word in self.subwords.group(pieces)]

    def join(self, pieces: Sequence[str]) -> str:
        """The raw line of the target that pieces make."""
        return str(self._detokenizer.detokenize(self.words(pieces), unescape=True))


def find_subwords(data: Path) -> Optional[Path]:
    """The codes or model of subwords that data-prep left in ``data``, or None.

    Raises:
        ValueError: if there are several.
    """
    found = [name for name in SUBWORD_FILES if (data / name).is_file()]
    if len(found) > 1:
        raise ValueError(f"{data} has {' and '.join(found)}: leave the one that its text was split with")
    return data / found[0] if found else None


def load_text_preparation(data: Path, *, source: str, target: str) -> TextPreparation:
    """How the corpus in ``data`` was prepared, from what data-prep left there.

    Raises:
        ValueError: if there is no model of subwords, or several.
    """
    path = find_subwords(data)
    if path is None:
        raise ValueError(
            f"{data} has no {', '.join(SUBWORD_FILES)}: put the subword codes or model there that its text was "
            "split with, as data-prep does"
        )
    record = data / RECORD
    recipe = record.read_text(encoding="utf-8").partition("\n")[0] if record.is_file() else ""
    cases = [CASES[part] for part in recipe.split(", ") if part in CASES]
    return TextPreparation(
        source=source,
        target=target,
        case=cases[0] if cases else "kept",
        subwords=SUBWORD_FILES[path.name](path),
    )
