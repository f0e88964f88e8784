"""Raw text as the subwords that a model of pairs reads, and subwords as raw text: what data-prep did, and back.

A word is a token of Moses, or of a corpus that comes in tokens; a piece is a part of a word.
"""

import logging
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Sequence

from fairseq_plugins.evaluation.text.languages import SIDE_LANGUAGES
from fairseq_plugins.evaluation.text.raw_text import (
    RECORD,
    Blanks,
    Case,
    Moses,
    SideText,
    Tokenizer,
    UnicodeForm,
    recipe_parts,
    recorded_unicode,
)
from fairseq_plugins.evaluation.text.subwords import SUBWORD_FILES, Subwords, find_subwords, load_subwords
from fairseq_plugins.scoring.corpus_metrics import LetterCase

logger = logging.getLogger(__name__)

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
