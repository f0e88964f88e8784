"""ROUGE of headlines."""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List, Sequence

from fairseq_plugins.data.text_files import read_lines
from fairseq_plugins.evaluation.translation.headlines import read_headlines, score_headlines
from fairseq_plugins.reports.metrics.metric import Figures
from fairseq_plugins.reports.metrics.text import TextMetric
from fairseq_plugins.reports.tables import Cell
from fairseq_plugins.reports.trained_run import TrainedRun
from fairseq_plugins.scoring.corpus_metrics import CorpusMetric, RougeMean
from fairseq_plugins.scoring.rouge import DEFAULT_SETTINGS, RougeSettings
from fairseq_plugins.scoring.rouge import METRICS as ROUGE_METRICS


class RougeMetric(TextMetric):
    """ROUGE of headlines, as ``evaluate_rouge`` left them in ``SAVE_DIR/SPLIT``, and their length.

    Args:
        reference, split: see :class:`TextMetric`.
        settings: of ROUGE.
    """

    compared = tuple(ROUGE_METRICS)

    def __init__(self, reference: Path, *, split: str = "test", settings: RougeSettings = DEFAULT_SETTINGS) -> None:
        super().__init__(reference, split=split)
        self.settings = settings

    def judge(self, name: str) -> CorpusMetric:
        # hypotheses are read without escapes, raw references have none
        return RougeMean(name, settings=self.settings, escapes="kept")

    def measure(self, run: TrainedRun) -> Figures:
        return {**self._scored(self.read(run), self.decoded(run)), **self.decoding(run)}

    def measure_text(self, path: Path) -> Figures:
        return self._scored(self.read_text(path), path)

    def read(self, run: TrainedRun) -> List[str]:
        return read_headlines(self.decoded(run), references=[self.reference])

    def read_text(self, path: Path) -> List[str]:
        return read_lines(path)

    def _scored(self, hypotheses: List[str], path: Path) -> Figures:
        scores = score_headlines(hypotheses, str(path), [self.reference], self.settings)
        words = statistics.mean(len(line.split()) for line in hypotheses)
        signature = self.settings.signature(num_references=1)
        return {"scores": [asdict(item) for item in scores], "signature": signature, "words": words}

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        scores = zip(ROUGE_METRICS.values(), figures["scores"])
        return {
            "words": Cell(figures["words"], ".1f", mean="none"),
            **{f"{name} F1": Cell(item["f1"], interval=item["f1_interval"]) for name, item in scores},
        }

    def note(self, figures: Sequence[Figures]) -> str:
        return f"ROUGE: `{self.settings.signature(num_references=1)}`. {super().note(figures)}".rstrip()
