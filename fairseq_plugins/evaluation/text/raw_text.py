"""Raw lines of one side of a corpus as what data-prep made of them, and back.

A word is a token of a tokenizer; a piece is a part of a word.
"""

import json
import logging
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Literal, Optional, Sequence, get_args

from fairseq_plugins.data.text_files import read_lines
from fairseq_plugins.evaluation.text.languages import is_language
from fairseq_plugins.evaluation.text.moses import MosesWords, TokenSigns, clean, composed
from fairseq_plugins.evaluation.text.subwords import Subwords, find_subwords, load_subwords

logger = logging.getLogger(__name__)

TEXT_RECORD = "text.json"
"""What data-prep writes beside the dictionary of a language model; it tells tokenizer, case and form of Unicode."""

RECORD = "prepared.txt"
"""What data-prep writes beside the binaries; its first line tells how they were made."""

RECORDED_AS_KEPT = "no NFC"
"""What stands in that line where the form of Unicode was kept."""

Case = Literal["kept", "lower tokens", "lower lines"]
"""Case is kept, or put down in the tokens, or in the lines that the tokenizer reads."""
CASES: Sequence[Case] = get_args(Case)

UnicodeForm = Literal["NFC", "kept"]
"""Text is put into the composed form of Unicode, or kept as it comes."""
UNICODE_FORMS: Sequence[UnicodeForm] = get_args(UnicodeForm)

TextKind = Literal["raw", "tokenised"]
"""Raw lines, or words and subwords between blanks as the model was trained on them."""
TEXT_KINDS: Sequence[TextKind] = get_args(TextKind)

NUM_WATCHED_LINES = 1000
"""Lines after which :meth:`SideText.watched` warns of text that looks tokenised, unless the text ends before."""


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
    """Moses' words; see :class:`~fairseq_plugins.evaluation.text.moses.MosesWords`.

    Args:
        language: such as "de".
    """

    def __init__(self, language: str):
        self._words = MosesWords(language)

    def split(self, line: str) -> List[str]:
        return self._words.split(line)

    def join(self, words: Sequence[str]) -> str:
        return self._words.join(words)


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
        unicode: the form that lines are put into.
        subwords: split words into pieces; without them each word is one piece.
        kind: of the lines; only raw ones are :meth:`watched`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        case: Case = "kept",
        unicode: UnicodeForm = "NFC",
        subwords: Optional[Subwords] = None,
        kind: TextKind = "raw",
    ):
        self.tokenizer = tokenizer
        self.case = case
        self.unicode = unicode
        self.subwords = subwords
        self.kind = kind

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line; none of a blank one."""
        line = clean(composed(line) if self.unicode == "NFC" else line)
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

    def watched(self, lines: Iterable[str], *, name: str = "the text") -> Iterator[str]:
        """The lines as they come, with one warning if raw text looks tokenised or split into subwords already.

        It comes at the end of the text, or after :data:`NUM_WATCHED_LINES` lines of it.

        Args:
            lines: of text.
            name: of the text, in the warning.
        """
        signs = TokenSigns(is_moses=isinstance(self.tokenizer, Moses))
        lines = iter(lines)
        if self.kind == "raw":
            for line in lines:
                signs.see(line)
                yield line
                if signs.num_lines == NUM_WATCHED_LINES:
                    break
            if warning := signs.warning(name):
                logger.warning(warning)
        yield from lines


THREE_LETTERS = re.compile("[a-z]{3}")
"""A code of ISO 639-3."""


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
        return SideText(Blanks(), unicode=recorded_unicode(data), kind=kind)
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
        (unicode,) = (form for form in UNICODE_FORMS if form == record.get("unicode", "NFC"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not as data-prep writes it: tokenizer is one of {', '.join(TOKENIZERS)}, moses with a "
            f"language, case one of {', '.join(CASES)}, and unicode one of {', '.join(UNICODE_FORMS)}"
        ) from error
    found = find_subwords(data)
    subwords = None if found is None else load_subwords(found)
    return SideText(tokenizer, case=case, unicode=unicode, subwords=subwords)


def recipe_parts(data: Path) -> List[str]:
    """How the corpus in ``data`` was prepared, in parts; none where that is not told."""
    record = data / RECORD
    lines = read_lines(record, when_empty="kept") if record.is_file() else []
    return lines[0].split(", ") if lines else []


def recorded_unicode(data: Path) -> UnicodeForm:
    """The form that the text of the corpus in ``data`` was put into."""
    return "kept" if RECORDED_AS_KEPT in recipe_parts(data) else "NFC"


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
