"""BLEU and chrF of translations."""

from dataclasses import asdict
from pathlib import Path
from typing import Dict, List, Sequence

from fairseq_plugins.data.text_files import read_lines
from fairseq_plugins.evaluation.translation.translations import (
    Translation,
    read_plain_translation,
    read_translation,
    score,
)
from fairseq_plugins.reports.metrics.metric import Figures
from fairseq_plugins.reports.metrics.text import TextMetric
from fairseq_plugins.reports.tables import Cell
from fairseq_plugins.reports.trained_run import TrainedRun
from fairseq_plugins.scoring.corpus_metrics import CORPUS_METRICS, CorpusMetric, LetterCase, bleu_of_text


class BleuMetric(TextMetric):
    """BLEU and chrF of translations, as ``evaluate_translation`` left them in ``SAVE_DIR/SPLIT``.

    Args:
        reference, split: see :class:`TextMetric`.
        case: whether it counts.
        language: of the translations.

    Raises:
        ValueError: if what splits the language into words is not installed.
    """

    compared = ("bleu", "chrf")

    def __init__(self, reference: Path, *, language: str, split: str = "test", case: LetterCase = "kept") -> None:
        super().__init__(reference, split=split)
        self.references = read_lines(reference)
        self.case: LetterCase = case
        self.language = language
        bleu_of_text(language=language)

    def judge(self, name: str) -> CorpusMetric:
        return CORPUS_METRICS[name](case=self.case, language=self.language)

    def measure(self, run: TrainedRun) -> Figures:
        return {**self._scored(self._translation(run)), **self.decoding(run)}

    def measure_text(self, path: Path) -> Figures:
        return self._scored(self._plain_translation(path))

    def read(self, run: TrainedRun) -> List[str]:
        return self._translation(run).detokenized

    def read_text(self, path: Path) -> List[str]:
        return self._plain_translation(path).detokenized

    def _translation(self, run: TrainedRun) -> Translation:
        return read_translation(
            self.decoded(run),
            references=self.references,
            reference_name=str(self.reference),
            language=self.language,
        )

    def _plain_translation(self, path: Path) -> Translation:
        return read_plain_translation(path, references=self.references, reference_name=str(self.reference))

    def _scored(self, translation: Translation) -> Figures:
        scores = score(translation, self.references, case=self.case, language=self.language)
        return {"scores": [asdict(item) for item in scores]}

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        names = ("BLEU", "chrF", "tokenised BLEU")
        return {name: Cell(item["value"], interval=item["interval"]) for name, item in zip(names, figures["scores"])}

    def note(self, figures: Sequence[Figures]) -> str:
        signatures = "; ".join(item["signature"] for item in figures[0]["scores"])
        return " ".join([f"BLEU, chrF, tokenised BLEU: `{signatures}`.", super().note(figures)]).rstrip()
