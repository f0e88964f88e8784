"""n-best lists: candidates of the sentences of a text, in the formats of fairseq-generate and other decoders.

Shapes: K candidates of a sentence.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Callable, Dict, List, Literal, Optional, Sequence, Tuple

import numpy as np

from fairseq_plugins.evaluation.raw_text import UnicodeForm
from fairseq_plugins.files import name_of, read_lines
from fairseq_plugins.options import UserError


@dataclass(frozen=True)
class Candidate:
    """A candidate for a sentence, as the decoder wrote it, and the decoder's score; higher is better.

    ``more`` holds fields of the line that are only passed on.
    """

    text: str
    score: float = 0.0
    more: Tuple[str, ...] = ()


@dataclass(frozen=True)
class NBestLists:
    """Candidates of a text.

    Attributes:
        candidates: the list of each sentence, not empty; sentences are in the order of the text.
        sources: a sentence each, or empty if the lists have none.
        references: a sentence each, or empty if the lists have none.
        unicode: form that texts are converted to.
    """

    candidates: List[List[Candidate]]
    sources: List[str]
    references: List[str]
    unicode: UnicodeForm = "NFC"

    @property
    def texts(self) -> List[str]:
        """The texts of all candidates."""
        return [text for _, text in self.numbered]

    @cached_property
    def numbered(self) -> List[Tuple[int, str]]:
        """The number of the sentence and the text of each candidate."""
        return [(number, candidate.text) for number, found in enumerate(self.candidates) for candidate in found]

    @property
    def first(self) -> List[int]:
        """The index of the candidate with the highest score by the decoder, for each sentence."""
        return [int(np.argmax([candidate.score for candidate in found])) for found in self.candidates]

    def lines_of(self, path: Path) -> List[str]:
        """The lines of a text file with one line for each sentence.

        Raises UserError if it has another number of lines.
        """
        lines = read_lines(path, unicode=self.unicode)
        if len(lines) != len(self.candidates):
            raise UserError(f"{path} has {len(lines):,} lines, and the lists are of {len(self.candidates):,} sentences")
        return lines


# Formats.

ListLine = Tuple[str, int, Candidate]
"""S for a source, T for a reference or H for a candidate; the number of its sentence; its text, with H the score."""

_SENTENCE_NUMBER = re.compile(" *[0-9]{1,15} *")


def _sentence_number(text: str) -> int:
    if not _SENTENCE_NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _read_generate(line: str) -> Optional[ListLine]:
    kind, dash, rest = line.partition("-")
    head, *fields = rest.split("\t", 2 if kind == "H" else 1)
    if kind not in ("S", "T", "H") or not dash or not (fields or head.isdigit()):
        return None  # other output of the program
    *score, text = fields
    if len(score) != (kind == "H"):
        raise ValueError(line)
    return kind, _sentence_number(head), Candidate(text, float(score[0]) if score else 0.0)


def _read_moses(line: str) -> ListLine:
    number, text, *rest = [field.strip() for field in line.split("|||")]
    score = rest[min(1, len(rest) - 1)]
    more = (rest[0], *rest[2:]) if len(rest) > 1 else ()
    return "H", _sentence_number(number), Candidate(text, float(score), more)


def _read_tab(line: str) -> ListLine:
    number, score, text = line.split("\t", 2)
    return "H", _sentence_number(number), Candidate(text, float(score))


def _write_moses(number: int, candidate: Candidate, score: str) -> str:
    features, *more = candidate.more or ("",)
    return " ||| ".join([str(number), candidate.text, features, score, *more])


@dataclass(frozen=True)
class ListFormat:
    """A format of n-best lists; ``form`` describes it in messages.

    ``read`` parses a line. It returns None for a line without content, and raises ``ValueError`` or ``IndexError`` if
    the line has another form. ``write`` makes a line of the number of the sentence, the candidate and its score.
    """

    form: str
    read: Callable[[str], Optional[ListLine]]
    write: Callable[[int, Candidate, str], str]


LIST_FORMATS: Dict[str, ListFormat] = {
    "generate": ListFormat(
        "H-NUMBER<tab>SCORE<tab>TEXT, as fairseq-generate --nbest writes them",
        _read_generate,
        lambda number, candidate, score: f"H-{number}\t{score}\t{candidate.text}",
    ),
    "moses": ListFormat("NUMBER ||| TEXT ||| FEATURES ||| SCORE", _read_moses, _write_moses),
    "tab": ListFormat(
        "NUMBER<tab>SCORE<tab>TEXT", _read_tab, lambda number, candidate, score: f"{number}\t{score}\t{candidate.text}"
    ),
}
"""Formats by name. All number sentences from 0."""


def read_nbest(
    paths: Sequence[Path],
    *,
    form: str,
    unicode: UnicodeForm = "NFC",
    repeated: Literal["joined", "refused"] = "joined",
) -> NBestLists:
    """Read files as one; ``-`` is the standard input. The form is a name of :data:`LIST_FORMATS`.

    Texts are converted to the form of Unicode of the models' data. ``repeated`` says what is done with candidates of a
    sentence in several files. Raises UserError if a file is missing or not UTF-8, a line has another form (the message
    names the line), or a sentence has a negative number or no candidate.
    """
    listed = LIST_FORMATS[form]
    candidates: Dict[int, List[Candidate]] = {}
    texts: Dict[str, Dict[int, str]] = {"S": {}, "T": {}}
    for path in paths:
        earlier = set(candidates) if repeated == "refused" else ()
        for line_number, line in enumerate(read_lines(path, unicode=unicode, when_empty="kept"), start=1):
            place = f"{name_of(path)}, line {line_number}"
            try:
                found = listed.read(line) if line.strip() else None
            except (ValueError, IndexError):
                raise UserError(f"{place}: cut short or not {listed.form}") from None
            if found is None:
                continue
            kind, number, candidate = found
            if kind != "H":
                texts[kind][number] = candidate.text
            elif number in earlier:
                raise UserError(f"{place}: sentence {number} is in an earlier file, too: give what one decoding wrote")
            else:
                candidates.setdefault(number, []).append(candidate)
    name = name_of(*paths)
    if not candidates:
        raise UserError(f"{name} holds no candidate: lines are {listed.form}")
    order = range(max([*candidates, *texts["S"], *texts["T"]]) + 1)  # truncated output may end in a source
    missing = next((number for number in order if number not in candidates), None)
    if missing is not None:
        raise UserError(
            f"{name}: sentence {missing}, from 0, has no candidate: was decoding cut short, or is a file missing?"
        )
    sources, references = (
        [one[number] for number in order] if one.keys() >= set(order) else [] for one in (texts["S"], texts["T"])
    )
    return NBestLists([candidates[number] for number in order], sources, references, unicode)


def read_generated(*paths: Path) -> Tuple[List[str], List[str]]:
    """The best hypotheses and the references in an output of ``fairseq-generate``, tokenised, in the order of the text.

    It may be in several files, such as those of ``--num-shards``; ``-`` is the standard input. Raises UserError as
    :func:`read_nbest`, if a sentence stands in several files, or if a reference is missing.
    """
    lists = read_nbest(paths, form="generate", repeated="refused")
    if not lists.references:
        raise UserError(f"{name_of(*paths)} lacks references, T-NUMBER<tab>TEXT: was generation cut short?")
    return [found[0].text for found in lists.candidates], lists.references


def write_nbest(lists: NBestLists, scores: Sequence[np.ndarray], *, form: str) -> str:
    """The lists with other scores, (K,) for each sentence, the best candidate first.

    Sources and references precede the candidates, if the format has them.
    """
    write = LIST_FORMATS[form].write
    lines: List[str] = []
    for number, (found, given) in enumerate(zip(lists.candidates, scores)):
        if form == "generate":
            texts = (("S", lists.sources), ("T", lists.references))
            lines += [f"{kind}-{number}\t{side[number]}" for kind, side in texts if side]
        order = np.argsort(-given, kind="stable")
        lines += [write(number, found[i], f"{given[i]:.6f}") for i in order]
    return "".join(f"{line}\n" for line in lines)
