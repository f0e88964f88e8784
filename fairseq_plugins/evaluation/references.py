"""Whether raw references are the targets that were decoded.

Preparation may change case, digits, marks and the characters that Moses escapes. A dictionary may lack words or parts
of words. So no single line proves that a reference is wrong. The lines are judged together: the letters of a target are
looked for in its reference, and a text is another one if they are missing from many lines.
"""

import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Collection, List, Optional, Sequence, Set

from fairseq_plugins.metrics.rouge import MOSES_ESCAPES, UNKNOWN_REFERENCE, without_escapes

LONGEST_START = 40
"""Characters of a line that a message tells."""

NUM_LETTERS = 4
"""Of a part of a target that is looked for; with fewer other lines of the same language have too many of them."""

OTHER_LINES = 0.25
"""A text with a larger share of lines that lack most of the parts is another one."""

FEWEST_PARTS = 15
"""Parts that lines of another text must have together; with fewer, such as of one short line, nothing is refused."""

QUOTES = "\"'`\u00b4\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a"
"""Marks that preparation may have replaced by one another before it wrote them as escapes."""


def check_blank_references(references: Sequence[str], *, name: str) -> None:
    """Refuse references that leave a sentence without one.

    Raises:
        ValueError: for the first of them.
    """
    for number, line in enumerate(references, start=1):
        if not line.strip():
            raise ValueError(f"{name}, line {number}: blank, nothing could be compared with it: give a reference")


def check_raw_references(targets: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Refuse references of another text than was decoded, and warn where the comparison cannot tell.

    Args:
        targets: tokenised, as ``fairseq-generate`` prints them beside the hypotheses, with subwords joined.
        references: raw, as many.
        name: of the decoded text, in messages.
        reference_name: of the references.

    Raises:
        ValueError: if it is another text, or the words of the targets are joined.
    """
    found = compare_with_references(targets, references)
    if found.first_other is not None:
        target, reference = targets[found.first_other], references[found.first_other]
        lines = (
            f"its line {found.first_other + 1} is '{_start(reference)}', and decoding printed the target "
            f"'{_start(target)}'"
        )
        if found.is_other_text:
            raise ValueError(
                f"{reference_name} is not the reference of the text that {name} was decoded from: {lines}: give the "
                "one that belongs to it"
            )
        warn_once(
            f"warning: {found.num_other:,} of {len(targets):,} lines of {reference_name} have little in common with "
            f"what {name} was decoded from: {lines}"
        )
    elif 2 * found.num_compared < len(targets):
        num_unknown = len(targets) - found.num_compared
        warn_once(
            f"warning: whether {reference_name} is the reference of the text that {name} was decoded from cannot be "
            f"seen: the dictionary knows too little of {num_unknown:,} of {len(targets):,} targets"
        )
    if found.first_joined is not None:
        target, reference = targets[found.first_joined], references[found.first_joined]
        raise ValueError(
            f"{name}: the words of target {found.first_joined}, '{_start(target)}', are joined, and in "
            f"{reference_name} they are '{_start(reference)}': decode with the kind of subwords that the data have "
            "(--bpe, or BPE in the environment)"
        )


@dataclass(frozen=True)
class Compared:
    """Targets and references, compared line by line.

    Attributes:
        num_compared: lines of whose target the dictionary knows enough.
        num_other: those of them whose reference lacks most of these.
        num_other_parts: how many parts their targets have.
        first_other: the first such line, from 0, or None.
        first_joined: where most words of the targets are joined, the first such line, or None.
    """

    num_compared: int
    num_other: int
    num_other_parts: int
    first_other: Optional[int]
    first_joined: Optional[int]

    @property
    def is_other_text(self) -> bool:
        """Whether the references are those of another text."""
        return self.num_other > OTHER_LINES * self.num_compared and self.num_other_parts >= FEWEST_PARTS


def compare_with_references(targets: Sequence[str], references: Sequence[str]) -> Compared:
    """Compare targets with their references, as many."""
    others: List[int] = []
    joined: List[int] = []
    num_compared = num_other_parts = num_ends = num_same_ends = 0
    for number, (target, reference) in enumerate(zip(targets, references)):
        parts = _parts(target)
        if not parts:
            continue
        num_compared += 1
        if not (_has_most(parts, [_letters(reference)]) or _has_most(parts, _readings(reference))):
            others.append(number)
            num_other_parts += len(parts)
            continue
        words, raw_words = _words(without_escapes(target)), _words(without_escapes(reference))
        if "".join(words) == "".join(raw_words):
            ends, raw_ends = _ends(words), _ends(raw_words)
            num_ends, num_same_ends = num_ends + len(raw_ends), num_same_ends + len(ends & raw_ends)
            if not raw_ends <= ends:
                joined.append(number)
    return Compared(
        num_compared=num_compared,
        num_other=len(others),
        num_other_parts=num_other_parts,
        first_other=others[0] if others else None,
        first_joined=joined[0] if joined and 2 * num_same_ends < num_ends else None,
    )


@lru_cache(maxsize=None)
def warn_once(message: str) -> None:
    """Tell on the standard error, however often the same texts are compared."""
    print(message, file=sys.stderr, flush=True)


def _start(line: str) -> str:
    return line if len(line) <= LONGEST_START else f"{line[:LONGEST_START]} ..."


def _words(line: str) -> List[str]:
    """The letters of each word that has any, without case and accents, at which tokenisers tear decomposed text."""
    folded = unicodedata.normalize("NFKD", line).casefold()
    return [word for word in ("".join(filter(str.isalpha, word)) for word in folded.split()) if word]


def _letters(line: str) -> str:
    return "".join(_words(line))


def _parts(target: str) -> List[str]:
    """All runs of so many letters in what stands between unknown words; all of them, if a whole line has no more."""
    known = [_letters(text) for text in target.split(UNKNOWN_REFERENCE)]
    if len(known) == 1 and len(known[0]) <= NUM_LETTERS:
        return [letters for letters in known if letters]
    return [
        letters[start : start + NUM_LETTERS] for letters in known for start in range(len(letters) - NUM_LETTERS + 1)
    ]


def _has_most(parts: List[str], readings: Collection[str]) -> bool:
    """Whether at least half of the parts stand in one of the readings or another."""
    return 2 * sum(any(part in reading for reading in readings) for part in parts) >= len(parts)


def _readings(reference: str) -> Set[str]:
    """The letters of a reference, also where they are counted that Moses' escapes have, whole or in pieces."""
    marks = {character: escape for escape, character in MOSES_ESCAPES.items()}
    quotes = [dict.fromkeys(QUOTES, escape) for escape in ("&quot;", "&apos;")]
    tables = [marks, *({**marks, **more} for more in quotes)]
    escaped = [reference.translate(str.maketrans(table)) for table in tables]
    return set(map(_letters, (reference, without_escapes(reference), *escaped)))


def _ends(words: List[str]) -> Set[int]:
    """Where words end, in letters of the line; the end of the line is none."""
    return set(accumulate(map(len, words[:-1])))
