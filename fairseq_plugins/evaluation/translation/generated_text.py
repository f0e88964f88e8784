"""What fairseq-generate wrote: read, and refused where it cannot be compared."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from fairseq_plugins.data.text_files import name_of, read_lines

SUBWORD_MARKS = (
    (re.compile(r"@@( |$)"), "@@", "subword_nmt"),
    (re.compile("\u2581"), "\u2581", "sentencepiece"),
)

OWN_MARKS = 0.01
"""A model may write them in such a share of the lines that the references do not have them in."""

_SENTENCE_NUMBER = re.compile("[0-9]{1,15}")


@dataclass(frozen=True)
class Generated:
    """The best hypothesis of each sentence, tokenised, and its reference, in the order of the text."""

    hypotheses: List[str]
    references: List[str]


def read_generated(*paths: Path) -> Generated:
    """Read the output of ``fairseq-generate``, which may lie in several files, such as those of ``--num-shards``.

    Of several hypotheses of a sentence the first is taken, which has the best score.

    Args:
        paths: ``-`` is the standard input.

    Raises:
        ValueError: if a file is missing or not UTF-8, if a line is cut short or has no number, if there is no
            hypothesis, if sentences are missing, or if one is in several files.
    """
    hypotheses: Dict[int, str] = {}
    references: Dict[int, str] = {}
    for path in paths:
        earlier = set(hypotheses)
        for place, line in enumerate(read_lines(path, when_empty="kept"), start=1):
            try:
                found = read_generated_line(line)
            except ValueError as error:
                raise ValueError(f"{name_of(path)}, line {place}: {error}") from None
            if found is not None and found.kind == "T":
                references[found.number] = found.text
            elif found is not None and found.kind == "H":
                if found.number in earlier:
                    raise ValueError(
                        f"{name_of(path)}, line {place}: sentence {found.number} is in an earlier file, too: give what "
                        "one decoding wrote"
                    )
                hypotheses.setdefault(found.number, found.text)
    name = name_of(*paths)
    if not hypotheses:
        raise ValueError(f"{name} holds no hypothesis: give the output of fairseq-generate")
    order = range(max(max(hypotheses), max(references, default=0)) + 1)
    missing = next((number for number in order if number not in hypotheses or number not in references), None)
    if missing is not None:
        raise ValueError(
            f"{name}: sentence {missing} has no hypothesis or no reference: was generation cut short, or is the "
            "file of a shard missing?"
        )
    return Generated([hypotheses[number] for number in order], [references[number] for number in order])


@dataclass(frozen=True)
class GeneratedLine:
    """A line that ``fairseq-generate`` writes for a sentence.

    Attributes:
        kind: S of a source, T of a reference, H of a hypothesis.
        number: of the sentence, from 0.
        score: of a hypothesis, as it is written; empty in other lines.
        text: without number and score.
    """

    kind: str
    number: int
    score: str
    text: str


def read_generated_line(line: str) -> Optional[GeneratedLine]:
    """What stands in a line; None of lines of other kinds, and of what else a program prints.

    Raises:
        ValueError: if a line begins as one of those kinds and does not go on so.
    """
    kind, dash, rest = line.partition("-")
    head, *fields = rest.split("\t", 2 if kind == "H" else 1)
    if kind not in ("S", "T", "H") or not dash or not (fields or head.isdigit()):
        return None
    number = read_sentence_number(head)
    if len(fields) < (2 if kind == "H" else 1):
        raise ValueError(f"{kind}-{number} is cut short")
    return GeneratedLine(kind, number, score=fields[0] if kind == "H" else "", text=fields[-1])


def read_sentence_number(text: str) -> int:
    """The number of a sentence, from 0.

    Raises:
        ValueError: if it is none.
    """
    if not _SENTENCE_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"'{text[:30]}' is no number of a sentence")
    return int(text)


def check_words(lines: Sequence[str], *, name: str, references: Sequence[str]) -> None:
    """Refuse text that still holds subword marks; raw references tell in how many lines they are the text's own.

    Raises:
        ValueError: naming the first line and the way out.
    """
    for pattern, mark, kind in SUBWORD_MARKS:
        marked = [number for number, line in enumerate(lines, start=1) if pattern.search(line)]
        num_own = sum(mark in line for line in references)
        if len(marked) > num_own + OWN_MARKS * len(lines):
            raise ValueError(
                f"{name}, line {marked[0]}: subword mark {mark} left over: generate with --remove-bpe={kind}"
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
        raise ValueError(
            f"{name}, line 1: empty, as all lines are: was generation cut short, or is the file of a shard missing?"
        )
