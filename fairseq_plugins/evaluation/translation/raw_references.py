"""Whether raw references are the targets that were decoded.

Tokenisation inserts blanks and marks, and preparation may change case, digits and marks; letters stay, and so does
every blank between words. Words that the dictionary lacks can be any letters.
"""

import unicodedata
from itertools import accumulate
from typing import List, Literal, Optional, Sequence, Set

from fairseq_plugins.scoring.rouge import without_escapes
from fairseq_plugins.scoring.unknown_words import UNKNOWN_REFERENCE

LONGEST_START = 40
"""Characters of a line that a message tells."""


def check_blank_references(references: Sequence[str], *, name: str) -> None:
    """Refuse references that leave a sentence without one.

    Raises:
        ValueError: for the first of them.
    """
    for number, line in enumerate(references, start=1):
        if not line.strip():
            raise ValueError(f"{name}, line {number}: blank, nothing could be compared with it: give a reference")


def check_raw_references(targets: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Refuse references of another text than was decoded.

    Args:
        targets: tokenised, as ``fairseq-generate`` prints them beside the hypotheses, with subwords joined.
        references: raw, as many.
        name: of the decoded text, in messages.
        reference_name: of the references.

    Raises:
        ValueError: for the first line that is another one.
    """
    for number, (target, reference) in enumerate(zip(targets, references), start=1):
        # the Moses tokeniser writes escapes, which other texts have as their own, and some on the one side alone
        plain = without_escapes(target)
        readings = ((plain, reference), (target, reference), (plain, without_escapes(reference)))
        if any(_fault(*reading) is None for reading in readings):
            continue
        if all(_fault(*reading) == "letters" for reading in readings):
            raise ValueError(
                f"{reference_name} is not the reference of the text that {name} was decoded from: its line {number} is "
                f"'{_start(reference)}', and decoding printed the target '{_start(target)}': give the one that belongs "
                "to it"
            )
        raise ValueError(
            f"{name}: the words of target {number - 1}, '{_start(target)}', are joined, and in {reference_name} "
            f"they are '{_start(reference)}': decode with the kind of subwords that the data have (--bpe, or BPE "
            "in the environment)"
        )


def _fault(target: str, reference: str) -> Optional[Literal["letters", "words"]]:
    """What differs: the letters, or else where words end."""
    if UNKNOWN_REFERENCE in target:
        pieces = ["".join(_words(piece)) for piece in target.split(UNKNOWN_REFERENCE)]
        return None if _holds_in_order("".join(_words(reference)), pieces) else "letters"
    words, raw_words = _words(target), _words(reference)
    if "".join(words) != "".join(raw_words):
        return "letters"
    return None if _ends(raw_words) <= _ends(words) else "words"


def _start(line: str) -> str:
    return line if len(line) <= LONGEST_START else f"{line[:LONGEST_START]} ..."


def _words(line: str) -> List[str]:
    """The letters of each word that has any, without case."""
    folded = unicodedata.normalize("NFKC", line).casefold()
    return [word for word in ("".join(filter(str.isalpha, word)) for word in folded.split()) if word]


def _ends(words: List[str]) -> Set[int]:
    """Where words end, in letters of the line."""
    return set(accumulate(map(len, words)))


def _holds_in_order(letters: str, parts: Sequence[str]) -> bool:
    """Whether the letters are the parts with any letters between them."""
    first, *middle, last = parts
    if len(first) + len(last) > len(letters) or not (letters.startswith(first) and letters.endswith(last)):
        return False
    letters = letters[len(first) : len(letters) - len(last)]
    for part in middle:
        place = letters.find(part)
        if place < 0:
            return False
        letters = letters[place + len(part) :]
    return True
