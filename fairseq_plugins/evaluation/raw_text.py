"""Raw lines as the tokens that data-prep made of them, and back.

A word is a token of a tokenizer. A piece is a part of a word, by subword-nmt or sentencepiece. :class:`SideText` is one
side of a corpus, :class:`TextPreparation` both sides of a corpus of pairs.
"""

import io
import json
import logging
import re
from abc import ABC, abstractmethod
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Callable,
    ClassVar,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    NoReturn,
    Optional,
    Sequence,
    Type,
    get_args,
)

from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from fairseq_plugins.data.text import STANDARD_INPUT, check_file, name_of, numbered_lines, read_lines
from fairseq_plugins.evaluation.moses import MosesWords, TokenSigns, clean, composed
from fairseq_plugins.metrics.corpus import LetterCase
from fairseq_plugins.options import UserError

# Subwords, whose codes or models data-prep leaves beside the binaries.

LONGEST_WORD = 1000
"""Characters of a word that subword-nmt splits at a time."""

MOST_CACHED_WORDS = 100_000
"""Bound of the cache of subword-nmt, in words."""


class Subwords(ABC):
    """A learnt way to split words.

    Attributes:
        kind: fairseq's name for it, in ``--remove-bpe``.
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
    """Codes of subword-nmt: a piece that ends in ``@@`` continues in the next one.

    A word above :data:`LONGEST_WORD` characters is split in stretches of that length, because the time of subword-nmt
    grows faster than the length of a word.
    """

    kind = "subword_nmt"

    def __init__(self, path: Path):
        with path.open(encoding="utf-8", newline="\n") as file:
            self.codes = BPE(file)

    def split(self, words: str) -> List[str]:
        if len(self.codes.cache) > MOST_CACHED_WORDS:
            self.codes.cache = {}  # not cleared: another thread may be reading the old one
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
"""Names of the files that data-prep writes."""


def find_subwords(data: Path) -> Optional[Path]:
    """Path of the subword codes or model in ``data``, or None.

    Raises:
        UserError: if there are several.
    """
    found = [name for name in SUBWORD_FILES if (data / name).is_file()]
    if len(found) > 1:
        raise UserError(f"{data} has {' and '.join(found)}: leave the one that its text was split with")
    return data / found[0] if found else None


def subword_kind(data: Path) -> str:
    """The kind of the subwords in ``data``, a value of ``--remove-bpe``; ``subword_nmt`` if there are none.

    Raises:
        UserError: if there are several.
    """
    path = find_subwords(data)
    return SubwordNMT.kind if path is None else SUBWORD_FILES[path.name].kind


def load_subwords(path: Path) -> Subwords:
    """Read subword codes or a model.

    Args:
        path: from :func:`find_subwords`.

    Raises:
        UserError: if the file is damaged.
    """
    try:
        with redirect_stderr(io.StringIO()):  # subword-nmt prints and ends the process
            return SUBWORD_FILES[path.name](path)
    except (ValueError, RuntimeError, SystemExit) as error:
        raise UserError(
            f"{path} is damaged: copy it again, or run the corpus' data-prep/<corpus>/prepare.sh again"
        ) from error


# Languages, by the codes of Moses.

SIDE_LANGUAGES: Dict[str, str] = {"article": "en", "title": "en"}
"""Sides of headline corpora and the language of their text."""

LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee
    el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io
    is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn
    mni mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd
    se sg si sk sl sm sn so sq sr ss st su sv sw ta tdt te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve
    vi vo wa wo xh yi yo yue za zh zu
    """.split()
)
"""Codes of ISO 639-1, and three more that Moses has rules for."""


def is_language(name: str) -> bool:
    """Whether this is a language, or a side of a headline corpus."""
    return name in LANGUAGES or name in SIDE_LANGUAGES


def check_language(name: str, *, flag: str) -> None:
    """Check that this is a language, because Moses silently takes the rules of English for others.

    Raises:
        UserError: with the remedy.
    """
    if not is_language(name):
        raise UserError(f"{flag} {name}: no language; give its code, such as de")


# One side of a corpus.

logger = logging.getLogger(__name__)

TEXT_RECORD = "text.json"
"""File of data-prep beside the dictionary of a language model, with tokenizer, case and form of Unicode."""

RECORD = "prepared.txt"
"""File of data-prep beside the binaries, whose first line says how they were made."""

RECORDED_AS_KEPT = "no NFC"
"""Part of that line if the form of Unicode was kept."""

Case = Literal["kept", "lower tokens", "lower lines"]
"""Case is kept, or lowered in the tokens, or lowered in the lines before tokenisation."""
CASES: Sequence[Case] = get_args(Case)

UnicodeForm = Literal["NFC", "kept"]
"""Text is converted to the composed form of Unicode, or kept as it is."""
UNICODE_FORMS: Sequence[UnicodeForm] = get_args(UnicodeForm)

TextKind = Literal["raw", "tokenised"]
"""Raw lines, or words and subwords separated by blanks as the model was trained on them."""
TEXT_KINDS: Sequence[TextKind] = get_args(TextKind)

NUM_WATCHED_LINES = 1000
"""Lines that :meth:`SideText.watched` reads before it warns of text that looks tokenised."""


class Tokenizer(ABC):
    """Splits lines into words, and joins them."""

    @abstractmethod
    def split(self, line: str) -> List[str]:
        """Words of a line; none of a blank one."""

    @abstractmethod
    def join(self, words: Sequence[str]) -> str:
        """The line that words make."""


class Blanks(Tokenizer):
    """Words are separated by white space, as in fairseq."""

    def split(self, line: str) -> List[str]:
        return line.split()

    def join(self, words: Sequence[str]) -> str:
        return " ".join(words)


class Moses(MosesWords, Tokenizer):
    """Words of Moses. The module of the base class imports nothing of this package, as data-prep needs."""


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
"""Tokenizers by their names in :data:`TEXT_RECORD`."""


class SideText:
    """Preparation of one side of a corpus.

    Args:
        tokenizer: splits lines into words.
        case: treatment of case.
        unicode: form that lines are converted to.
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
        """Pieces of a raw line; none for a blank one."""
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
        """Pass lines through, with one warning if raw text looks tokenised or split into subwords already.

        The warning comes after :data:`NUM_WATCHED_LINES` lines or at the end of a shorter text.

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
    """Check for a value of :data:`TextKind`.

    Raises:
        UserError: with the values.
    """
    if kind not in TEXT_KINDS:
        raise UserError(f"text {kind}: give one of {', '.join(TEXT_KINDS)}")


def load_side_text(data: Path, *, kind: TextKind = "raw") -> SideText:
    """Preparation of the text of a language model.

    Args:
        data: folder that data-prep wrote; its files describe how raw text was prepared.
        kind: of the text.

    Raises:
        UserError: if there is no such kind, or a file that raw text needs is missing or invalid.
    """
    check_text_kind(kind)
    if kind == "tokenised":
        return SideText(Blanks(), unicode=recorded_unicode(data), kind=kind)
    path = data / TEXT_RECORD
    if not path.is_file():
        raise UserError(
            f"{path} is missing, which tells how raw text of a language model becomes words: give the folder of the "
            "model's corpus, as its data-prep/<corpus>/prepare.sh makes it, or give tokenised text "
            "(--tokenised, text='tokenised')"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _check_recorded_language(record.get("language", "en"))
        tokenizer = TOKENIZERS[record["tokenizer"]](record)
        (case,) = (case for case in CASES if case == record["case"])
        (unicode,) = (form for form in UNICODE_FORMS if form == record.get("unicode", "NFC"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not as data-prep writes it: tokenizer is one of {', '.join(TOKENIZERS)}, moses with a "
            f"language, case one of {', '.join(CASES)}, and unicode one of {', '.join(UNICODE_FORMS)}"
        ) from error
    found = find_subwords(data)
    subwords = None if found is None else load_subwords(found)
    return SideText(tokenizer, case=case, unicode=unicode, subwords=subwords)


def recipe_parts(data: Path) -> List[str]:
    """The parts of the first line of :data:`RECORD` in ``data``; none without the file."""
    record = data / RECORD
    lines = read_lines(record, when_empty="kept") if record.is_file() else []
    return lines[0].split(", ") if lines else []


def recorded_unicode(data: Path) -> UnicodeForm:
    """The form of Unicode of the text in ``data``."""
    return "kept" if RECORDED_AS_KEPT in recipe_parts(data) else "NFC"


def is_of_characters(data: Path) -> bool:
    """Whether the words of a language model's corpus are characters, by its record.

    Raises:
        UserError: if the record is invalid.
    """
    return (data / TEXT_RECORD).is_file() and isinstance(load_side_text(data).tokenizer, Characters)


def _check_recorded_language(name: str) -> None:
    """Data-prep accepts any code of three letters; Moses uses the rules of English for it."""
    if not is_language(name) and not THREE_LETTERS.fullmatch(name):
        raise UserError(f"language {name}")


# Both sides of a corpus of pairs.

RECORDED_CASES: Dict[str, Case] = {"lowercase tokens": "lower tokens", "lowercase": "lower lines"}
"""Parts of :data:`RECORD` about case. Without such a part, case is kept."""

CORPORA_OF_TOKENS = frozenset({"gigaword"})
"""Corpora that come in tokens of their own, such as ``-lrb-`` and ``##``."""


class TextPreparation:
    """Preparation of a corpus of pairs.

    Args:
        source, target: tokenizers of the two sides.
        case, unicode, subwords: see :class:`SideText`; the same on both sides.
    """

    def __init__(self, *, source: Tokenizer, target: Tokenizer, case: Case, unicode: UnicodeForm, subwords: Subwords):
        self.subwords = subwords
        self._source, self._target = (
            SideText(side, case=case, unicode=unicode, subwords=subwords) for side in (source, target)
        )

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line of the source; none for a blank one."""
        return self._source.split(line)

    def watched(self, lines: Iterable[str], *, name: str = "the text") -> Iterator[str]:
        """Lines of the source, with a warning if they look tokenised already; see :meth:`SideText.watched`."""
        return self._source.watched(lines, name=name)

    def join(self, pieces: Sequence[str]) -> str:
        """The raw line of the target that pieces make."""
        return self._target.join(pieces)


def recorded_case(data: Path) -> Case:
    """Treatment of case in ``data``, by its record."""
    cases = [RECORDED_CASES[part] for part in recipe_parts(data) if part in RECORDED_CASES]
    return cases[0] if cases else "kept"


def compared_case(data: Path) -> LetterCase:
    """Whether case counts when translations by models of ``data`` are compared with raw references."""
    return "kept" if recorded_case(data) == "kept" else "ignored"


def load_text_preparation(data: Path, *, source: str, target: str) -> TextPreparation:
    """Preparation of the corpus of pairs in ``data``, by its record; without one there is a warning.

    Raises:
        UserError: if there is no model of subwords, or several, or a file is damaged.
    """
    path = find_subwords(data)
    if path is None:
        raise UserError(
            f"{data} has no {', '.join(SUBWORD_FILES)}: put the subword codes or model there that its text was "
            "split with, as data-prep does"
        )
    if not (data / RECORD).is_file():
        logger.warning(f"{data} has no {RECORD} of data-prep: its text is taken as tokens of Moses in their own case")
    has_own_tokens = any(part.partition(" ")[0] in CORPORA_OF_TOKENS for part in recipe_parts(data)[:1])

    def tokenizer(language: str) -> Tokenizer:
        return Blanks() if has_own_tokens else Moses(SIDE_LANGUAGES.get(language, language))

    return TextPreparation(
        source=tokenizer(source),
        target=tokenizer(target),
        case=recorded_case(data),
        unicode=recorded_unicode(data),
        subwords=load_subwords(path),
    )


# Numbers of tokens in a vocabulary.


@dataclass(frozen=True)
class EncodedLine:
    """A line as models read it.

    Attributes:
        text: the raw line.
        tokens: words or pieces of words, the last one an end mark, n.
        numbers: of the tokens in the vocabulary, n.
    """

    text: str
    tokens: List[str]
    numbers: List[int]


class LineEncoder:
    """Converts lines to numbers.

    Args:
        text: conversion of lines to tokens.
        dictionary: the vocabulary.
    """

    def __init__(self, text: SideText, dictionary: Dictionary):
        self.text = text
        self.dictionary = dictionary

    def encode(self, line: str) -> EncodedLine:
        """A line with its end mark."""
        pieces = self.text.split(line)
        numbers = [*self.numbers(pieces), self.dictionary.eos()]
        return EncodedLine(line, [*pieces, self.dictionary.eos_word], numbers)

    def numbers(self, pieces: Sequence[str]) -> List[int]:
        """Numbers of pieces, without an end mark."""
        return [self.dictionary.index(piece) for piece in pieces]


def encode_lines(lines: Sequence[str], dictionary: Dictionary) -> List[Tensor]:
    """Split lines at white space, as ``fairseq-preprocess`` does, and number their words.

    Args:
        lines: tokenised as the model's training text was.
        dictionary: of the model, ``model.decoder.dictionary``; it does not grow.

    Returns:
        one a line, (n,) int64, the end mark at the end; a blank line has nothing else.
    """
    return [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]


# Reading lines without waiting for the end of a file.


def stream_lines(paths: Sequence[Path], *, when_empty: Literal["refused", "kept"] = "refused") -> Iterator[str]:
    """Lines of files that are read as one text, split at newlines only. Files may be compressed by gzip.

    Args:
        paths: ``-`` is the standard input.
        when_empty: whether a text without a line is an error.

    Raises:
        UserError: at once if a file is missing; while reading if a file is damaged or a line is not UTF-8; at the end
            if there was no line, unless that is kept.
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
    """Raise the error for texts without a line."""
    raise UserError(f"{name_of(*paths)} is empty: give a sentence a line")
