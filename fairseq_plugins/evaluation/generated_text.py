"""Lines of text, those that fairseq-generate wrote among them: read, and refused where they cannot be compared."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from fairseq.data import Dictionary

SUBWORD_MARKS = (
    (re.compile(r"@@( |$)"), "@@", "subword_nmt"),
    (re.compile("\u2581"), "\u2581", "sentencepiece"),
)

UNKNOWN = Dictionary().unk_string(escape=True)
"""How the host writes a reference's word that the dictionary lacks; it equals no word."""


@dataclass(frozen=True)
class Generated:
    """The best hypothesis of each sentence, tokenised, and its reference, in the order of the text."""

    hypotheses: List[str]
    references: List[str]


def read_generated(path: Path) -> Generated:
    """Read the output of ``fairseq-generate``; of several hypotheses the first, which has the best score.

    Raises:
        ValueError: if the file holds no hypothesis, or sentences are missing.
    """
    hypotheses: Dict[int, str] = {}
    references: Dict[int, str] = {}
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            kind, _, rest = line.rstrip("\n").partition("-")
            number, _, text = rest.partition("\t")
            if kind == "T" and number.isdigit():
                references[int(number)] = text
            elif kind == "H" and number.isdigit() and int(number) not in hypotheses:
                hypotheses[int(number)] = text.partition("\t")[2]
    if not hypotheses:
        raise ValueError(f"{path} holds no hypothesis: give the output of fairseq-generate")
    order = range(max(max(hypotheses), max(references, default=0)) + 1)
    missing = [number for number in order if number not in hypotheses or number not in references]
    if missing:
        raise ValueError(f"{path}: sentence {missing[0]} has no hypothesis or no reference: was generation cut short?")
    return Generated([hypotheses[number] for number in order], [references[number] for number in order])


def read_lines(path: Path) -> List[str]:
    """Lines of a text file, split at newlines only.

    Raises:
        ValueError: if the file is missing, empty or not UTF-8; the message names the line.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    lines = path.read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise ValueError(f"{path} is empty")
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.decode("utf-8").rstrip("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8: {error.reason}") from error
    return decoded


def check_words(lines: Sequence[str], *, name: str) -> None:
    """Refuse text that still holds subword marks.

    Raises:
        ValueError: naming the first line and the way out.
    """
    for number, line in enumerate(lines, start=1):
        for pattern, mark, kind in SUBWORD_MARKS:
            if pattern.search(line):
                raise ValueError(
                    f"{name}, line {number}: subword mark {mark} left over: generate with --remove-bpe={kind}"
                )


def check_pairs(hypotheses: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Refuse lists that cannot be compared line by line.

    Raises:
        ValueError: on different lengths, or if no hypothesis holds a word.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{name} has {len(hypotheses):,} lines and {reference_name} {len(references):,}: line "
            f"{min(len(hypotheses), len(references)) + 1} has no counterpart"
        )
    if not any(line.strip() for line in hypotheses):
        raise ValueError(f"{name}, line 1: empty, as all lines are: was generation cut short?")


def check_same_text(references: Sequence[str], others: Sequence[str], *, name: str, other_name: str) -> None:
    """Refuse systems that translated different texts, by their references; words of no dictionary may differ.

    Raises:
        ValueError: with the first line that differs.
    """
    for number, (line, other) in enumerate(zip(references, others), 1):
        words, other_words = line.split(), other.split()
        if len(words) != len(other_words) or any(a != b and UNKNOWN not in (a, b) for a, b in zip(words, other_words)):
            raise ValueError(
                f"{name} and {other_name} translate different texts: their references differ in line {number}"
            )
