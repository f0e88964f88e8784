"""Raw lines as tokens of Moses, and tokens as lines: shared by data-prep and by all commands that read raw text.

data-prep loads this file by its path, without the seconds that importing fairseq takes. So it imports nothing of the
package.

sacremoses makes a token of every character that is neither a letter nor a digit. So it splits words at zero-width
joiners, soft hyphens, accents and other combining marks, and splits emoji. Here it sees one character for each grapheme
cluster. The other characters of the cluster are put back afterwards.
"""

import unicodedata
from collections import Counter
from typing import Dict, List, Optional, Sequence

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

RARE = 1000
"""One line in so many may look tokenised in raw text."""


def clean(line: str) -> str:
    """``line`` without surrounding space and without characters that could break it."""
    return LINE_BREAKS.sub(" ", line).strip()


def composed(text: str) -> str:
    """Text in Unicode's composed form, NFC: an accented letter is one character if Unicode has one."""
    return unicodedata.normalize("NFC", text)


class MosesWords:
    """Words of Moses; hyphens stay in words, and ``& | < > ' " [ ]`` are escaped.

    No text can then look like one of fairseq's symbols, such as ``<unk>``.

    Args:
        language: such as "de"; Moses has the rules of English for those that it does not know.
    """

    def __init__(self, language: str):
        self._tokenizer = MosesTokenizer(lang=language)
        self._detokenizer = MosesDetokenizer(lang=language)

    def split(self, line: str) -> List[str]:
        """Words of a line; none of a blank one."""
        if _OF_A_LONG_CLUSTER.search(line) is None:
            return list(self._tokenizer.tokenize(line, escape=True))
        clusters = _CLUSTER.findall(line)
        words = self._tokenizer.tokenize(_CLUSTER.sub(_own_character, line), escape=False)
        whole = _put_back(clusters, " ".join(words))
        if whole is None:  # Moses drops control characters
            return list(self._tokenizer.tokenize(line, escape=True))
        return str(self._tokenizer.escape_xml(whole)).split()

    def join(self, words: Sequence[str]) -> str:
        """The line that words make."""
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


class TokenSigns:
    """Counts lines that look tokenised, or split into subwords, where raw text is expected.

    Args:
        is_moses: whether Moses tokenises the text; other text may have tokens of Moses as its own.
    """

    def __init__(self, *, is_moses: bool):
        self._patterns = {name: one for name, one in _SIGNS.items() if is_moses or name in _SUBWORD_SIGNS}
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
