"""Raw lines of one side of a corpus as what data-prep made of them, and back.

A word is a token of a tokenizer; a piece is a part of a word.
"""

import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Callable, Dict, List, Literal, Optional, Sequence, get_args

from sacremoses import MosesDetokenizer, MosesTokenizer

from fairseq_plugins.evaluation.text.languages import is_language
from fairseq_plugins.evaluation.text.subwords import Subwords, find_subwords, load_subwords

TEXT_RECORD = "text.json"
"""What data-prep writes beside the dictionary of a language model; it tells tokenizer and case."""

Case = Literal["kept", "lower tokens", "lower lines"]
"""Case is kept, or put down in the tokens, or in the lines that the tokenizer reads."""
CASES: Sequence[Case] = get_args(Case)


class Tokenizer(ABC):
    """Splits lines into words, and joins them."""

    @abstractmethod
    def split(self, line: str) -> List[str]:
        """Words of a line; none of a blank one."""

    @abstractmethod
    def join(self, words: Sequence[str]) -> str:
        """The line that words make."""


class Blanks(Tokenizer):
    """Words are what stands between white space, as for the host."""

    def split(self, line: str) -> List[str]:
        return line.split()

    def join(self, words: Sequence[str]) -> str:
        return " ".join(words)


class Moses(Tokenizer):
    """Moses' words; ``& | < > ' " [ ]`` are escaped.

    Args:
        language: such as "de".
    """

    def __init__(self, language: str):
        self._tokenizer = MosesTokenizer(lang=language)
        self._detokenizer = MosesDetokenizer(lang=language)

    def split(self, line: str) -> List[str]:
        return list(self._tokenizer.tokenize(line, escape=True))

    def join(self, words: Sequence[str]) -> str:
        return str(self._detokenizer.detokenize(list(words), unescape=True))


class Characters(Tokenizer):
    """Characters are words, ``_`` is the blank between words."""

    def split(self, line: str) -> List[str]:
        return list("_".join(line.split()))

    def join(self, words: Sequence[str]) -> str:
        return "".join(words).replace("_", " ")


TOKENIZERS: Dict[str, Callable[[Dict[str, str]], Tokenizer]] = {
    "blanks": lambda record: Blanks(),
    "moses": lambda record: Moses(record["language"]),
    "characters": lambda record: Characters(),
}
"""What the record calls a tokenizer, and that tokenizer."""


class SideText:
    """How a side of a corpus was prepared.

    Args:
        tokenizer: makes words.
        case: what becomes of case.
        subwords: split words into pieces; without them each word is one piece.
    """

    def __init__(self, tokenizer: Tokenizer, *, case: Case = "kept", subwords: Optional[Subwords] = None):
        self.tokenizer = tokenizer
        self.case = case
        self.subwords = subwords

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line; none of a blank one."""
        words = self.tokenizer.split(line.lower() if self.case == "lower lines" else line)
        if self.case == "lower tokens":
            words = [word.lower() for word in words]
        return words if self.subwords is None else self.subwords.split(" ".join(words))

    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        """The pieces of each word, without the marks that join them."""
        return [[piece] for piece in pieces] if self.subwords is None else self.subwords.group(pieces)

    def words(self, pieces: Sequence[str]) -> List[str]:
        """The words that pieces make."""
        return ["".join(word) for word in self.group(pieces)]

    def join(self, pieces: Sequence[str]) -> str:
        """The raw line that pieces make."""
        return self.tokenizer.join(self.words(pieces))


THREE_LETTERS = re.compile("[a-z]{3}")
"""A code of ISO 639-3."""

TextKind = Literal["raw", "tokenised"]
"""Raw lines, or words and subwords between blanks as the model was trained on them."""
TEXT_KINDS: Sequence[TextKind] = get_args(TextKind)


def check_text_kind(kind: str) -> None:
    """Refuse what is no :data:`TextKind`.

    Raises:
        ValueError: with those there are.
    """
    if kind not in TEXT_KINDS:
        raise ValueError(f"text {kind}: give one of {', '.join(TEXT_KINDS)}")


def load_side_text(data: Path, *, kind: TextKind = "raw") -> SideText:
    """How text of a language model is read and written.

    Args:
        data: directory that data-prep wrote; raw text is read as what lies there tells.
        kind: of the text.

    Raises:
        ValueError: if there is no such kind, or a file is missing that raw text needs, or tells something else.
    """
    check_text_kind(kind)
    if kind == "tokenised":
        return SideText(Blanks())
    path = data / TEXT_RECORD
    if not path.is_file():
        raise ValueError(
            f"{path} is missing, which tells how raw text of a language model becomes words: give the folder of the "
            "model's corpus, run its data-prep/<corpus>/prepare.sh again, which adds it, or give tokenised text "
            "(--tokenised, text='tokenised')"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _check_recorded_language(record.get("language", "en"))
        tokenizer = TOKENIZERS[record["tokenizer"]](record)
        (case,) = (case for case in CASES if case == record["case"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not as data-prep writes it: tokenizer is one of {', '.join(TOKENIZERS)}, moses with a "
            f"language, and case one of {', '.join(CASES)}"
        ) from error
    found = find_subwords(data)
    return SideText(tokenizer, case=case, subwords=None if found is None else load_subwords(found))


def is_of_characters(data: Path) -> bool:
    """Whether data-prep recorded that the words of a language model's corpus are characters.

    Raises:
        ValueError: if the record is not as data-prep writes it.
    """
    return (data / TEXT_RECORD).is_file() and isinstance(load_side_text(data).tokenizer, Characters)


def _check_recorded_language(name: str) -> None:
    """Data-prep takes any code of three letters, for which Moses has the rules of English."""
    if not is_language(name) and not THREE_LETTERS.fullmatch(name):
        raise ValueError(f"language {name}")
