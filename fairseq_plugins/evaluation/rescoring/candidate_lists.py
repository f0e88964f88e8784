"""Lists of the best candidates for each sentence of a text, as decoders write them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_plugins.data.text_files import name_of, read_lines
from fairseq_plugins.evaluation.text.raw_text import UnicodeForm
from fairseq_plugins.evaluation.translation.generated_text import (
    SUBWORD_MARKS,
    read_generated_line,
    read_sentence_number,
)


@dataclass(frozen=True)
class Candidate:
    """What a decoder offers for a sentence.

    Attributes:
        text: as the decoder wrote it, with its subwords.
        score: the decoder's own; higher is better.
        more: fields of the line that are kept and not read.
    """

    text: str
    score: float
    more: Tuple[str, ...] = ()


@dataclass(frozen=True)
class NBestLists:
    """Candidates of a text.

    Attributes:
        candidates: of each sentence, in the order of the text, each list as it was written and not empty.
        sources: a sentence each where the lists have them, or else empty.
        references: likewise.
        unicode: form that texts are put into.
    """

    candidates: List[List[Candidate]]
    sources: List[str]
    references: List[str]
    unicode: UnicodeForm = "NFC"

    @property
    def texts(self) -> List[str]:
        """Of all candidates."""
        return [candidate.text for found in self.candidates for candidate in found]

    @property
    def first(self) -> List[int]:
        """The place of the candidate with the highest score of the decoder, for each sentence."""
        return [int(np.argmax([candidate.score for candidate in found])) for found in self.candidates]

    def lines_of(self, path: Path) -> List[str]:
        """A text file with a line for each sentence.

        Raises:
            ValueError: if it has not as many lines.
        """
        lines = read_lines(path, unicode=self.unicode)
        if len(lines) != len(self.candidates):
            raise ValueError(
                f"{path} has {len(lines):,} lines, and the lists are of {len(self.candidates):,} sentences"
            )
        return lines


Line = Tuple[str, int, str, Optional[Candidate]]
"""What stands in a line: S, T or H, the number of the sentence, its text, and the candidate of an H."""


def _read_generate(line: str) -> Optional[Line]:
    found = read_generated_line(line)
    if found is None:
        return None
    candidate = Candidate(text=found.text, score=float(found.score)) if found.kind == "H" else None
    return found.kind, found.number, found.text, candidate


def _read_moses(line: str) -> Optional[Line]:
    fields = [field.strip() for field in line.split("|||")]
    number, text, *rest = fields
    score = rest[min(1, len(rest) - 1)]
    more = (rest[0], *rest[2:]) if len(rest) > 1 else ()
    return "H", read_sentence_number(number), text, Candidate(text=text, score=float(score), more=more)


def _read_tab(line: str) -> Optional[Line]:
    number, score, text = line.split("\t", 2)
    return "H", read_sentence_number(number), text, Candidate(text=text, score=float(score))


def _write_moses(number: int, candidate: Candidate, score: str) -> str:
    features, *more = candidate.more or ("",)
    return " ||| ".join([str(number), candidate.text, features, score, *more])


@dataclass(frozen=True)
class ListFormat:
    """How a candidate stands in a line.

    Attributes:
        form: for messages.
        read: raises ``ValueError`` or ``IndexError`` where a line is of another form; None of lines that say nothing.
        write: number of the sentence, candidate and score as a line.
    """

    form: str
    read: Callable[[str], Optional[Line]]
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
"""Sentences are numbered from 0 in all of them."""


def read_nbest(paths: Sequence[Path], *, form: str, unicode: UnicodeForm = "NFC") -> NBestLists:
    """Read files as one.

    Args:
        paths: ``-`` is the standard input.
        form: a name of :data:`LIST_FORMATS`.
        unicode: form that texts are put into, that of the models' data.

    Raises:
        ValueError: if a file is missing or not UTF-8, a line has another form, a sentence has a negative number or no
            candidate, or a score is no number; the message names the line.
    """
    read = LIST_FORMATS[form].read
    candidates: Dict[int, List[Candidate]] = {}
    texts: Dict[str, Dict[int, str]] = {"S": {}, "T": {}}
    for path in paths:
        for place, line in enumerate(read_lines(path, unicode=unicode), start=1):
            try:
                found = read(line) if line.strip() else None
                if found is not None and found[3] and not math.isfinite(found[3].score):
                    raise ValueError
            except (ValueError, IndexError):
                raise ValueError(f"{name_of(path)}, line {place}: not {LIST_FORMATS[form].form}") from None
            if found is None:
                continue
            kind, number, text, candidate = found
            if candidate is None:
                texts[kind][number] = text
            else:
                candidates.setdefault(number, []).append(candidate)
    if not candidates:
        raise ValueError(f"{name_of(*paths)} holds no candidate: lines are {LIST_FORMATS[form].form}")
    order = range(max(candidates) + 1)
    missing = next((number for number in order if number not in candidates), None)
    if missing is not None:
        raise ValueError(f"{name_of(*paths)}: sentence {missing} has no candidate; sentences are numbered from 0")
    sources, references = (
        [one[number] for number in order] if one.keys() >= set(order) else [] for one in (texts["S"], texts["T"])
    )
    return NBestLists([candidates[number] for number in order], sources, references, unicode)


def write_nbest(lists: NBestLists, scores: Sequence[np.ndarray], *, form: str) -> str:
    """The lists by other scores, the best candidate first; ``scores`` holds (K,) for each sentence.

    Sources and references stand before the candidates where the form has them.
    """
    write = LIST_FORMATS[form].write
    lines: List[str] = []
    for number, (found, given) in enumerate(zip(lists.candidates, scores)):
        if form == "generate":
            texts = (("S", lists.sources), ("T", lists.references))
            lines += [f"{kind}-{number}\t{side[number]}" for kind, side in texts if side]
        order = np.argsort(-given, kind="stable")
        lines += [write(number, found[place], f"{given[place]:.6f}") for place in order]
    return "".join(f"{line}\n" for line in lines)


def marked_kind(texts: Sequence[str]) -> Optional[str]:
    """fairseq's name for the subwords whose marks are in the texts, or None; sentencepiece marks most texts."""
    num_marked = {kind: sum(pattern.search(text) is not None for text in texts) for pattern, _, kind in SUBWORD_MARKS}
    if 2 * num_marked["sentencepiece"] > len(texts):
        return "sentencepiece"
    return "subword_nmt" if num_marked["subword_nmt"] else None
