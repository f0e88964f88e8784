"""Raw lines as the tokens that data-prep made of them, and back.

A word is a token of a tokenizer. A piece is a part of a word, by subword-nmt or sentencepiece. :class:`SideText` is one
side of a corpus. ``text.json`` in the folder of a corpus records how its text was prepared.
"""

import io
import json
import logging
from abc import ABC, abstractmethod
from contextlib import redirect_stderr
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
    get_args,
)

import torch
from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from fairseq_plugins.evaluation.tokenizers import (
    HUGGING_FACE,
    LANGUAGES,
    TOKENIZERS,
    Blanks,
    Moses,
    Tokenizer,
    TokenizerError,
    TokenSigns,
    clean,
    composed,
    load_tokenizer,
    split_in_stretches,
    split_words,
)
from fairseq_plugins.files import name_of, numbered_lines
from fairseq_plugins.metrics.corpus import LetterCase
from fairseq_plugins.options import UserError

# Subwords, whose codes or models data-prep leaves beside the binaries.

MOST_CACHED_WORDS = 100_000
"""Bound of the cache of subword-nmt, in words."""


class Subwords(ABC):
    """A learnt way to split words; ``kind`` is fairseq's name for it, in ``--remove-bpe``."""

    kind: ClassVar[str]

    @abstractmethod
    def split(self, words: str) -> List[str]:
        """Pieces of words with spaces between them."""

    @abstractmethod
    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        """The pieces of each word, without the marks that join them."""


class WholeWords(Subwords):
    """Each word is one piece."""

    kind = "subword_nmt"  # finds no marks to join

    def split(self, words: str) -> List[str]:
        return words.split()

    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        return [[piece] for piece in pieces]


class SubwordNMT(Subwords):
    """Codes of subword-nmt: a piece that ends in ``@@`` continues in the next one."""

    kind = "subword_nmt"

    def __init__(self, path: Path):
        with path.open(encoding="utf-8", newline="\n") as file:
            self.codes = BPE(file)

    def split(self, words: str) -> List[str]:
        if len(self.codes.cache) > MOST_CACHED_WORDS:
            self.codes.cache = {}  # not cleared: another thread may be reading the old one
        return split_in_stretches(words, self.codes.segment)

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


SUBWORD_FILES: Dict[str, Union[Type[SubwordNMT], Type[SentencePiece]]] = {
    "bpe.codes": SubwordNMT,
    "sentencepiece.bpe.model": SentencePiece,
    "sentencepiece.unigram.model": SentencePiece,
}
"""Names of the files that data-prep writes."""


def find_subwords(data: Path) -> Optional[Path]:
    """Path of the subword codes or model in ``data``, or None. Raises UserError if there are several."""
    found = [name for name in SUBWORD_FILES if (data / name).is_file()]
    if len(found) > 1:
        raise UserError(f"{data} has {' and '.join(found)}: keep only the one that its text was split with")
    return data / found[0] if found else None


def subword_kind(data: Path) -> str:
    """The kind of the subwords in ``data``, a value of ``--remove-bpe``; ``subword_nmt`` if there are none.

    Raises UserError if there are several.
    """
    path = find_subwords(data)
    return (WholeWords if path is None else SUBWORD_FILES[path.name]).kind


def load_subwords(data: Path) -> Subwords:
    """The subwords in ``data``; :class:`WholeWords` if there are none.

    Raises UserError if there are several, or the file is damaged.
    """
    path = find_subwords(data)
    if path is None:
        return WholeWords()
    try:
        with redirect_stderr(io.StringIO()):  # subword-nmt prints and ends the process
            return SUBWORD_FILES[path.name](path)
    except (ValueError, RuntimeError, SystemExit) as error:
        raise UserError(
            f"{path} is damaged: copy it again, or run the corpus' data-prep/<corpus>/prepare.sh again"
        ) from error


# Languages, by the codes of Moses.

HEADLINE_SIDES = ("article", "title")
"""Sides of headline corpora, whose text is English."""


def is_language(name: str) -> bool:
    """Whether this is a language, or a side of a headline corpus."""
    return name in LANGUAGES or name in HEADLINE_SIDES


def check_language(name: str, *, flag: str) -> None:
    """Check that this is a language, because Moses silently takes the rules of English for others."""
    if not is_language(name):
        raise UserError(f"{flag} {name}: not a language; give a code, such as de")


# One side of a corpus.

logger = logging.getLogger(__name__)

TEXT_RECORD = "text.json"
"""File of data-prep beside the dictionaries: tokenizer, case, form of Unicode, and the file of the subwords, if any."""

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
        self.subwords = WholeWords() if subwords is None else subwords
        self.kind = kind

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line; none for a blank one."""
        line = clean(composed(line) if self.unicode == "NFC" else line)
        return self.subwords.split(" ".join(split_words(line, self.tokenizer, self.case)))

    def group(self, pieces: Sequence[str]) -> List[List[str]]:
        """The pieces of each word, without the marks that join them."""
        return self.subwords.group(pieces)

    def words(self, pieces: Sequence[str]) -> List[str]:
        """The words that pieces make."""
        return ["".join(word) for word in self.group(pieces)]

    def join(self, pieces: Sequence[str]) -> str:
        """The raw line that pieces make."""
        return self.tokenizer.join(self.words(pieces))

    def watched(self, lines: Iterable[str], *, name: str = "the text") -> Iterator[str]:
        """Pass lines through, with one warning if raw text looks tokenised or split into subwords already.

        The warning names the text. It comes after :data:`NUM_WATCHED_LINES` lines or at the end of a shorter text.
        """
        signs = TokenSigns(is_raw=isinstance(self.tokenizer, Moses))
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


@dataclass(frozen=True)
class TextRecord:
    """How data-prep made tokens of a text; the defaults are for a folder without :data:`TEXT_RECORD`.

    Attributes:
        tokenizer: one of :data:`TOKENIZERS`.
        language: for Moses; None stands for the name of each side.
        case, unicode: see :class:`SideText`.
        subwords: name of the file that split the words, or None.
    """

    tokenizer: str = "moses"
    language: Optional[str] = None
    case: Case = "kept"
    unicode: UnicodeForm = "NFC"
    subwords: Optional[str] = None


def read_record(data: Path) -> TextRecord:
    """The record of the text in ``data``, or the defaults if there is none.

    Raises UserError if it is invalid, or the file of the subwords is missing.
    """
    path = data / TEXT_RECORD
    if not path.is_file():
        return TextRecord()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        record = TextRecord(**found)
        is_valid = [
            {"tokenizer", "case"} <= found.keys(),
            record.tokenizer in TOKENIZERS[:-1] or record.tokenizer.startswith(HUGGING_FACE),
            record.language is None or is_language(record.language),
            record.case in CASES and record.unicode in UNICODE_FORMS,
            record.subwords in (None, *SUBWORD_FILES),
        ]
        if not all(is_valid):
            raise ValueError(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not as data-prep writes it: tokenizer is one of {', '.join(TOKENIZERS)}, moses with a "
            f"language, case one of {', '.join(CASES)}, and unicode one of {', '.join(UNICODE_FORMS)}"
        ) from error
    if record.subwords is not None and not (data / record.subwords).is_file():
        raise UserError(f"{data} lacks {record.subwords}, by which its text was split: copy the whole folder")
    return record


def side_tokenizer(data: Path, record: TextRecord, side: str) -> Tokenizer:
    """The tokenizer of the side of a corpus. Raises UserError if its file or library is missing."""
    try:
        return load_tokenizer(record.tokenizer, language=record.language or side, folder=data)
    except TokenizerError as error:
        raise UserError(f"{data / TEXT_RECORD}: {error}") from error


def load_side_text(data: Path, *, kind: TextKind = "raw") -> SideText:
    """Preparation of the text of a language model, by the files that data-prep wrote into ``data``.

    Raises UserError if a file that raw text needs is missing or invalid.
    """
    if kind == "tokenised":
        return SideText(Blanks(), unicode=read_record(data).unicode, kind=kind)
    if not (data / TEXT_RECORD).is_file():
        raise UserError(
            f"{data / TEXT_RECORD} is missing, so it is unknown how raw text becomes words: give the folder of the "
            "model's corpus, as its data-prep/<corpus>/prepare.sh makes it, or give tokenised text (--tokenised, "
            "text='tokenised')"
        )
    record = read_record(data)
    tokenizer = side_tokenizer(data, record, "en")
    return SideText(tokenizer, case=record.case, unicode=record.unicode, subwords=load_subwords(data))


def compared_case(data: Path) -> LetterCase:
    """Whether case counts when translations by models of ``data`` are compared with raw references."""
    return "kept" if read_record(data).case == "kept" else "ignored"


def load_detokenizer(data: Optional[Path], *, language: str) -> Tokenizer:
    """The tokenizer of what a translator of ``data`` writes in this language; Moses without a record.

    Raises UserError if the record is invalid, or the tokenizer's file or library is missing.
    """
    record = TextRecord() if data is None else read_record(data)
    return side_tokenizer(data or Path(), record, language)


def load_pair_texts(data: Path, *, source: str, target: str) -> Tuple[SideText, SideText]:
    """Preparation of both sides of the pairs in ``data``, by its record; without one there is a warning.

    Raises UserError if there is neither a record nor a model of subwords, or several models, or a file is damaged.
    """
    if not (data / TEXT_RECORD).is_file():
        if find_subwords(data) is None:
            raise UserError(
                f"{data} has no {', '.join(SUBWORD_FILES)} and no {TEXT_RECORD}: copy the subword model there that its "
                "text was split with, or the record that data-prep wrote"
            )
        logger.warning(
            f"{data} has no {TEXT_RECORD} of data-prep: its text is taken as tokens of Moses in their own case"
        )
    record = read_record(data)
    shared: Dict[str, Any] = dict(case=record.case, unicode=record.unicode, subwords=load_subwords(data))
    first, second = (SideText(side_tokenizer(data, record, side), **shared) for side in (source, target))
    return first, second


# Numbers of tokens in a vocabulary.


def encode_lines(lines: Sequence[str], dictionary: Dictionary) -> List[Tensor]:
    """Lines that are tokenised as the model's training text was, split at white space, each (n,) int64."""
    return [number_words(line.split(), dictionary) for line in lines]


def number_words(words: Sequence[str], dictionary: Dictionary) -> Tensor:
    """Numbers of n words and of the end mark after them, (n + 1,) int64.

    A word that reads like the start mark, the end mark or padding is unknown: as a mark it would end the sentence or be
    left out of the perplexity.
    """
    marks = {dictionary.bos(), dictionary.pad(), dictionary.eos()}
    numbers = (dictionary.index(word) for word in words)
    known = [dictionary.unk() if number in marks else number for number in numbers]
    return torch.tensor([*known, dictionary.eos()])


# Reading lines without waiting for the end of a file.

BUFFERED_CHARACTERS = 1 << 22
"""Characters at which a buffer is full, even with few lines."""


def stream_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Lines of files that are read as one text, split at newlines only. ``-`` is the standard input.

    Files may be compressed by gzip. Raises UserError at once if a file is missing; while reading if a file is damaged
    or a line is not UTF-8; at the end if there was no line.
    """
    return _not_empty(chain.from_iterable([numbered_lines(path) for path in paths]), paths)


def _not_empty(lines: Iterable[Tuple[int, str]], paths: Sequence[Path]) -> Iterator[str]:
    is_empty = True
    for _, line in lines:
        is_empty = False
        yield line
    if is_empty:
        raise_empty(paths)


def buffered(lines: Iterable[str], *, num_lines: int) -> Iterator[List[str]]:
    """Lines in lists of ``num_lines`` lines or :data:`BUFFERED_CHARACTERS` characters.

    If reading fails, the lines before are yielded first.
    """
    buffer: List[str] = []
    num_characters = 0
    try:
        for line in lines:
            buffer.append(line)
            num_characters += len(line)
            if len(buffer) == num_lines or num_characters >= BUFFERED_CHARACTERS:
                yield buffer
                buffer = []
                num_characters = 0
    except ValueError:
        if buffer:
            yield buffer
        raise
    if buffer:
        yield buffer


def raise_empty(paths: Sequence[Path]) -> NoReturn:
    """Raise the error for texts without a line."""
    raise UserError(f"{name_of(*paths)} is empty: give a sentence a line")


# Lines that a program gives.


def checked_lines(lines: Sequence[str]) -> List[str]:
    """Lines without the newlines that a file yields. Raises UserError if they are no list of lines."""
    if isinstance(lines, str):
        raise UserError(f"'{lines[:30]}' is one text: give a list of lines")
    if not isinstance(lines, Iterable):
        raise UserError(f"{lines!r:.60} is of type {type(lines).__name__}: give a list of lines")
    return [checked_line(line) for line in lines]


def checked_line(line: str) -> str:
    """A line without the newline that a file yields. Raises UserError if it is no text or more than a line."""
    if not isinstance(line, str):
        raise UserError(f"{line!r:.30} is no text but of type {type(line).__name__}: give a line as str")
    line = line.removesuffix("\n").removesuffix("\r")
    if "\n" in line:
        raise UserError(f"'{line.partition(chr(10))[0][:30]}' goes on in another line: split the text into lines")
    return line
