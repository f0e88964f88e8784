"""Raw text as the subwords that a model of pairs reads, and subwords as raw text: what data-prep did, and back.

A word is a token of Moses; a piece is a part of a word.
"""

from pathlib import Path
from typing import Dict, List, Sequence

from fairseq_plugins.data.text_files import read_lines
from fairseq_plugins.evaluation.text.languages import SIDE_LANGUAGES
from fairseq_plugins.evaluation.text.raw_text import Case, Moses, SideText
from fairseq_plugins.evaluation.text.subwords import SUBWORD_FILES, Subwords, find_subwords, load_subwords
from fairseq_plugins.scoring.corpus_metrics import LetterCase

RECORD = "prepared.txt"
"""What data-prep writes beside the binaries; its first line tells how they were made."""

CASES: Dict[str, Case] = {"lowercase tokens": "lower tokens", "lowercase": "lower lines"}
"""What the record says of case, and what it means; where it says nothing, case is kept."""


class TextPreparation:
    """How a corpus of pairs was prepared.

    Args:
        source, target: languages, such as "de" and "en".
        case: of the text of either side.
        subwords: how words are split, on both sides.
    """

    def __init__(self, *, source: str, target: str, case: Case, subwords: Subwords):
        self.subwords = subwords
        self._source, self._target = (
            SideText(Moses(SIDE_LANGUAGES.get(language, language)), case=case, subwords=subwords)
            for language in (source, target)
        )

    def split(self, line: str) -> List[str]:
        """Pieces of a raw line of the source; none of a blank one."""
        return self._source.split(line)

    def words(self, pieces: Sequence[str]) -> List[str]:
        """The words that pieces of either side make."""
        return self._source.words(pieces)

    def join(self, pieces: Sequence[str]) -> str:
        """The raw line of the target that pieces make."""
        return self._target.join(pieces)


def recorded_case(data: Path) -> Case:
    """What the preparation of the corpus in ``data`` did with case, from what data-prep left there."""
    record = data / RECORD
    recipe = read_lines(record, when_empty="kept")[:1] if record.is_file() else []
    cases = [CASES[part] for line in recipe for part in line.split(", ") if part in CASES]
    return cases[0] if cases else "kept"


def compared_case(data: Path) -> LetterCase:
    """Whether case counts where translations by models of ``data`` are compared with raw references."""
    return "kept" if recorded_case(data) == "kept" else "ignored"


def load_text_preparation(data: Path, *, source: str, target: str) -> TextPreparation:
    """How the corpus in ``data`` was prepared, from what data-prep left there.

    Raises:
        ValueError: if there is no model of subwords, or several, or a file is damaged.
    """
    path = find_subwords(data)
    if path is None:
        raise ValueError(
            f"{data} has no {', '.join(SUBWORD_FILES)}: put the subword codes or model there that its text was "
            "split with, as data-prep does"
        )
    return TextPreparation(
        source=source,
        target=target,
        case=recorded_case(data),
        subwords=load_subwords(path),
    )
