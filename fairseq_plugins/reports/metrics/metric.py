"""What runs are compared by."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Dict, Sequence

from fairseq_plugins.reports.tables import Cell
from fairseq_plugins.reports.trained_run import TrainedRun

Figures = Dict[str, Any]
"""What was found of a run, by name, for machines."""


class Metric(ABC):
    """What runs are compared by."""

    @abstractmethod
    def check(self, run: TrainedRun) -> None:
        """Refuse a run that cannot be measured, before any is.

        Raises:
            ValueError: with the remedy.
        """

    @abstractmethod
    def measure(self, run: TrainedRun) -> Figures:
        """Figures of a run, besides those that all runs have.

        Raises:
            ValueError, OSError: if the run lacks what is measured.
        """

    def measure_text(self, path: Path) -> Figures:
        """Figures of a text of another origin.

        Raises:
            ValueError: if it cannot be scored, or if the metric is of models alone.
        """
        raise ValueError(f"{path}: a text cannot stand beside models here: compare by BLEU or ROUGE")

    @abstractmethod
    def cells(self, figures: Figures) -> Dict[str, Cell]:
        """The metric's columns of a run or a text."""

    def note(self, figures: Sequence[Figures]) -> str:
        """What must be the same where figures are compared."""
        return ""
