"""Raw lines as words, and words as lines: shared by data-prep and by all commands that read raw text.

data-prep loads this file by its path, without the seconds that importing fairseq takes. So it imports nothing of the
package.
"""

import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import regex
from sacremoses import MosesDetokenizer, MosesTokenizer

LINE_BREAKS = regex.compile("[\0\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Characters at which some programs break a line; they become spaces."""

ESCAPES: Sequence[str] = tuple(escape for _, escape in MosesTokenizer.MOSES_ESCAPE_XML_REGEXES)
"""Escapes that the tokenizer writes for ``& | < > ' " [ ]``."""

# A character and what belongs to it: marks, format characters, the rest of an emoji or a flag. Never white space.
_CLUSTER = regex.compile(r"[\p{M}\p{Cf}]*(?!\s)\X[\p{M}\p{Cf}]*")
_OWN_CHARACTER = regex.compile(r"[^\p{M}\p{Cf}]")
_OF_A_LONG_CLUSTER = regex.compile(r"[\p{M}\p{Cf}\U0001F3FB-\U0001F3FF\U0001F1E6-\U0001F1FF]")

# "5 € a day": Moses glues every currency sign to the next word, as in "$ 5".
_CURRENCY_AFTER_NUMBER = regex.compile(r"(?<=\p{Nd} )\p{Sc}(?= \P{Nd})")
_STAND_IN = "\ue000"  # an ordinary character to Moses

# Moses glues only ASCII's punctuation to the word before it. In Chinese and Japanese no blanks stand there at all.
_TERMINAL_PUNCTUATION = regex.compile(r"(?V1)[\p{Terminal_Punctuation}--[\0-\x7f\u3000-\u303f\uff00-\uffef]]")

_SIGNS: Dict[str, "regex.Pattern[str]"] = {
    "escapes such as &apos;": regex.compile(rf"(?<!\S)(?:{'|'.join(ESCAPES)})(?!\S*[;=/])"),
    "@-@": regex.compile(r"(?<=\S) @-@ (?=\S)"),
    "@@": regex.compile(r"[^\s@]@@(?!\S)"),
    "\u2581": regex.compile("\u2581"),
}
_SUBWORD_SIGNS = ("@@", "\u2581")

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


def moses_language(side: str) -> str:
    """The language whose rules Moses follows for a side of a corpus: its name, or English for "title" or "src"."""
    return side if side in LANGUAGES else "en"


RARE = 1000
"""One line in this many may look tokenised in raw text."""


def clean(line: str) -> str:
    """``line`` without surrounding space and without characters that could break it."""
    return LINE_BREAKS.sub(" ", line).strip()


def composed(text: str) -> str:
    """Text in Unicode's composed form, NFC: an accented letter is one character if Unicode has one."""
    return unicodedata.normalize("NFC", text)


class TokenizerError(ValueError):
    """A tokenizer that cannot be made. The text is one line with the remedy."""


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


class Characters(Tokenizer):
    """Characters are words, ``_`` is the blank between words."""

    def split(self, line: str) -> List[str]:
        return list("_".join(line.split()))

    def join(self, words: Sequence[str]) -> str:
        return "".join(words).replace("_", " ")


class Moses(Tokenizer):
    """Words of Moses; hyphens stay in words, and ``& | < > ' " [ ]`` are escaped.

    No text can then look like one of fairseq's symbols, such as ``<unk>``.

    sacremoses makes a token of every character that is neither a letter nor a digit. So it splits words at zero-width
    joiners, soft hyphens, accents and other combining marks, and splits emoji. Here Moses sees one character for
    each grapheme cluster. The other characters of the cluster are put back afterwards.

    Args:
        language: such as "de"; Moses applies its English rules to languages that it does not know.
    """

    def __init__(self, language: str):
        self._tokenizer = MosesTokenizer(lang=language)
        self._detokenizer = MosesDetokenizer(lang=language)

    def split(self, line: str) -> List[str]:
        if _OF_A_LONG_CLUSTER.search(line) is None:
            return list(self._tokenizer.tokenize(line, escape=True))
        clusters = _CLUSTER.findall(line)
        words = self._tokenizer.tokenize(_CLUSTER.sub(_own_character, line), escape=False)
        whole = _put_back(clusters, " ".join(words))
        if whole is None:  # Moses drops control characters
            return list(self._tokenizer.tokenize(line, escape=True))
        return str(self._tokenizer.escape_xml(whole)).split()

    def join(self, words: Sequence[str]) -> str:
        text = " ".join(words)
        plain = self._detokenizer.unescape_xml(text.replace(" @-@ ", "-"))
        seen = _TERMINAL_PUNCTUATION.sub(",", _CURRENCY_AFTER_NUMBER.sub(_STAND_IN, plain))
        if seen != plain or _OF_A_LONG_CLUSTER.search(plain) is not None:
            line = self._detokenizer.detokenize(_CLUSTER.sub(_own_character, seen).split(), unescape=False)
            whole = _put_back(_CLUSTER.findall(plain), str(line))
            if whole is not None:
                return whole
        return str(self._detokenizer.detokenize(text.split(), unescape=True))


def _own_character(cluster: "regex.Match[str]") -> str:
    """The character that Moses sees of a cluster."""
    found = _OWN_CHARACTER.search(cluster[0])
    return found[0] if found else cluster[0][0]


def _put_back(clusters: Sequence[str], text: str) -> Optional[str]:
    """Text with each of its characters replaced by a cluster; None where there are not as many."""
    if len(clusters) != sum(not character.isspace() for character in text):
        return None
    left = iter(clusters)
    return "".join(character if character.isspace() else next(left) for character in text)


class HuggingFace(Tokenizer):
    """Pieces of a HuggingFace tokenizer, such as of byte-level BPE, from its file ``tokenizer.json``.

    Raises TokenizerError if the file is missing or damaged, or the library ``tokenizers`` is not installed.
    """

    def __init__(self, path: Path):
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            raise TokenizerError(f"{path} needs the library tokenizers: pip install 'fairseq-plugins[hf]'") from None
        if not path.is_file():
            raise TokenizerError(f"{path} does not exist: copy the tokenizer's file there")
        try:
            self._tokenizer = Library.from_file(str(path))
        except Exception as error:  # the library raises no narrower class
            raise TokenizerError(f"{path} is no file of a HuggingFace tokenizer ({error})") from None
        self._tokenizer.no_truncation()  # a file may ask for truncation and padding of batches
        self._tokenizer.no_padding()

    def split(self, line: str) -> List[str]:
        return list(self._tokenizer.encode(line, add_special_tokens=False).tokens)

    def join(self, words: Sequence[str]) -> str:
        numbers = [self._tokenizer.token_to_id(word) for word in words]
        return str(self._tokenizer.decode([number for number in numbers if number is not None])).strip()


HUGGING_FACE = "hf:"
"""Begins the name of a HuggingFace tokenizer. The path of its file follows."""

TOKENIZERS: Sequence[str] = ("blanks", "moses", "characters", f"{HUGGING_FACE}PATH")
"""Names of tokenizers in ``text.json``."""


def load_tokenizer(name: str, *, language: str, folder: Path) -> Tokenizer:
    """The tokenizer of this name of :data:`TOKENIZERS`; paths are relative to ``folder``.

    Raises TokenizerError if there is none of this name, or as :class:`HuggingFace` does.
    """
    if name == "moses":
        return Moses(moses_language(language))
    if name.startswith(HUGGING_FACE):
        return HuggingFace(folder / name.removeprefix(HUGGING_FACE))
    if name not in TOKENIZERS:
        raise TokenizerError(f"tokenizer {name}: give one of {', '.join(TOKENIZERS)}")
    return Blanks() if name == "blanks" else Characters()


def split_words(line: str, tokenizer: Tokenizer, case: str) -> List[str]:
    """Words of a line in their ``case``: "kept", or "lower lines" or "lower tokens", before or after tokenisation.

    Tokenizers need the case of a line to tell sentence ends from abbreviations.
    """
    words = tokenizer.split(line.lower() if case == "lower lines" else line)
    return [word.lower() for word in words] if case == "lower tokens" else words


LONGEST_WORD = 1000
"""Letters of a word in a training pair at most, as in Moses, and of a word that subword-nmt learns from and splits."""


def stretches(word: str) -> List[str]:
    """The word, or its stretches of :data:`LONGEST_WORD` letters."""
    return [word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD)]


def split_in_stretches(words: str, segment: Callable[[str], str]) -> List[str]:
    """Pieces of words with spaces between them, by subword-nmt's ``segment``.

    Longer words are split in :func:`stretches`, because the time of subword-nmt grows faster than the length of a word.
    """
    if max(map(len, words.split(" "))) <= LONGEST_WORD:
        return segment(words).split()
    pieces: List[str] = []
    for word in words.split(" "):
        found = [part for part in (segment(stretch).split() for stretch in stretches(word)) if part]
        for goes_on in found[:-1]:
            goes_on[-1] += "@@"
        pieces += [piece for part in found for piece in part]
    return pieces


class TokenSigns:
    """Counts lines that look tokenised, or split into subwords, where raw text is expected.

    Text that need not be raw may be tokenised on purpose, so only subwords are counted in it.
    """

    def __init__(self, *, is_raw: bool):
        self._patterns = {name: one for name, one in _SIGNS.items() if is_raw or name in _SUBWORD_SIGNS}
        self.num_lines = self.num_suspected = 0
        self._counts: "Counter[str]" = Counter()

    def see(self, line: str) -> None:
        """Count a line."""
        self.num_lines += 1
        if "@" not in line and "&" not in line and "\u2581" not in line:
            return
        found = {name: len(pattern.findall(line)) for name, pattern in self._patterns.items()}
        self.num_suspected += any(found.values())
        self._counts.update(found)

    def warning(self, name: str) -> str:
        """The warning about the text ``name``; empty if fewer than one line in :data:`RARE` looks so."""
        if self.num_suspected * RARE < self.num_lines or not self.num_suspected:
            return ""
        listed = ", ".join(f"{sign} {count:,}" for sign, count in self._counts.items() if count)
        return (
            f"{name}: {self.num_suspected:,} of {self.num_lines:,} lines look tokenised or split into subwords already "
            f"({listed}), and would be so twice: give raw text"
        )
