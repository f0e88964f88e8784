"""Raw lines of one side of a corpus as what data-prep made of them, and back.

A word is a token of a tokenizer; a piece is a part of a word.
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

# Learnt ways to split words into pieces, which data-prep leaves beside the binaries.


LONGEST_WORD = 1000
"""Characters of a word that codes of subword-nmt are applied to at a time."""

MOST_CACHED_WORDS = 100_000
"""Words whose pieces are remembered at most."""


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


# Languages of text, by the codes that Moses takes.


SIDE_LANGUAGES: Dict[str, str] = {"article": "en", "title": "en"}
"""Sides of headline corpora, with the language that their text is in."""

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
    """Whether text can be of this language, or of this side of a headline corpus."""
    return name in LANGUAGES or name in SIDE_LANGUAGES


def check_language(name: str, *, flag: str) -> None:
    """Refuse what is no language, for which Moses would take the rules of English without a word.

    Raises:
        ValueError: with the remedy.
    """
    if not is_language(name):
        raise ValueError(f"{flag} {name}: no language; give its code, such as de")


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
    """Words are what stands between white space, as for fairseq."""

    def split(self, line: str) -> List[str]:
        return line.split()

    def join(self, words: Sequence[str]) -> str:
        return " ".join(words)


class Moses(Tokenizer):
    """Moses' words; see :class:`~fairseq_plugins.evaluation.moses.MosesWords`.

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


# Raw text as the subwords that a model of pairs reads, and subwords as raw text: what data-prep did, and back.
#
# A word is a token of Moses, or of a corpus that comes in tokens; a piece is a part of a word.


RECORDED_CASES: Dict[str, Case] = {"lowercase tokens": "lower tokens", "lowercase": "lower lines"}
"""What the record says of case, and what it means; where it says nothing, case is kept."""

CORPORA_OF_TOKENS = frozenset({"gigaword"})
"""Their text, and what their models read, is in tokens of its own, such as ``-lrb-`` and ``##``."""


class TextPreparation:
    """How a corpus of pairs was prepared.

    Args:
        source, target: tokenizers of either side.
        case: of the text of either side.
        unicode: form of the text of either side.
        subwords: how words are split, on both sides.
    """

    def __init__(self, *, source: Tokenizer, target: Tokenizer, case: Case, unicode: UnicodeForm, subwords: Subwords):
        self.subwords = subwords
        self._source, self._target = (
            SideText(side, case=case, unicode=unicode, subwords=subwords) for side in (source, target)
        )

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line of the source; none of a blank one."""
        return self._source.split(line)

    def watched(self, lines: Iterable[str], *, name: str = "the text") -> Iterator[str]:
        """Lines of the source, with a warning if they look tokenised already; see :meth:`.SideText.watched`."""
        return self._source.watched(lines, name=name)

    def join(self, pieces: Sequence[str]) -> str:
        """The raw line of the target that pieces make."""
        return self._target.join(pieces)


def recorded_case(data: Path) -> Case:
    """What the preparation of the corpus in ``data`` did with case, from what data-prep left there."""
    cases = [RECORDED_CASES[part] for part in recipe_parts(data) if part in RECORDED_CASES]
    return cases[0] if cases else "kept"


def compared_case(data: Path) -> LetterCase:
    """Whether case counts where translations by models of ``data`` are compared with raw references."""
    return "kept" if recorded_case(data) == "kept" else "ignored"


def load_text_preparation(data: Path, *, source: str, target: str) -> TextPreparation:
    """How the corpus in ``data`` was prepared, from what data-prep left there.

    A folder without its record is warned of.

    Raises:
        ValueError: if there is no model of subwords, or several, or a file is damaged.
    """
    path = find_subwords(data)
    if path is None:
        raise ValueError(
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


# Lines of text as numbers of a vocabulary: raw ones with their pieces, and tokenised ones.


@dataclass(frozen=True)
class EncodedLine:
    """A line as models read it.

    Attributes:
        text: the line as it came.
        tokens: words or pieces of words, the last an end mark, n.
        numbers: of the tokens in the vocabulary, n.
    """

    text: str
    tokens: List[str]
    numbers: List[int]


class LineEncoder:
    """Makes numbers of lines.

    Args:
        text: how lines become tokens.
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


# Lines of text as they come, without waiting for the end of the file.


def stream_lines(paths: Sequence[Path], *, when_empty: Literal["refused", "kept"] = "refused") -> Iterator[str]:
    """Lines of files that are read as one text, split at newlines only; files may be compressed by gzip.

    Args:
        paths: ``-`` is the standard input.
        when_empty: what becomes of a text without a line.

    Raises:
        ValueError: at once if a file is missing; on the way if a file is damaged or a line is not UTF-8; at the end if
            there was no line, unless that is kept.
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
    """Refuse texts that have no line."""
    raise ValueError(f"{name_of(*paths)} is empty: give a sentence a line")
