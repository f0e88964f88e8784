"""Metrics of decoded texts."""

import shlex
from abc import abstractmethod
from pathlib import Path
from typing import List, Sequence, Tuple

from fairseq_plugins.evaluation.translation.decoding import GENERATED_FILE, check_decoded_by, decoded_with
from fairseq_plugins.reports.metrics.metric import Figures, Metric
from fairseq_plugins.reports.trained_run import TrainedRun
from fairseq_plugins.scoring.corpus_metrics import CorpusMetric


class TextMetric(Metric):
    """A metric of texts that ``fairseq-generate`` left in ``SAVE_DIR/SPLIT``.

    Args:
        reference: file with the raw reference.
        split: that was decoded.

    Attributes:
        compared: names of metrics by which texts are compared sentence by sentence.
    """

    compared: Tuple[str, ...]

    @abstractmethod
    def judge(self, name: str) -> CorpusMetric:
        """One of those compared, of texts as they are read here; it is that of the table."""

    def __init__(self, reference: Path, *, split: str = "test") -> None:
        self.reference = reference
        self.split = split

    def decoded(self, run: TrainedRun) -> Path:
        """What the run's checkpoint wrote.

        Raises:
            ValueError: if it has written nothing, or another checkpoint did.
        """
        path = run.save_dir / self.split / GENERATED_FILE
        if not path.is_file():
            raise ValueError(f"{path} does not exist: decode {self.split} with --out {path.parent}")
        check_decoded_by(run.checkpoint, path.parent)
        return path

    def check(self, run: TrainedRun) -> None:
        self.decoded(run)

    def decoding(self, run: TrainedRun) -> Figures:
        """How the run was decoded, where that is told."""
        flags = decoded_with(self.decoded(run).parent)
        return {} if flags is None else {"decoded_with": shlex.join(flags)}

    def note(self, figures: Sequence[Figures]) -> str:
        """How each was decoded, where they were not all decoded alike."""
        told = dict.fromkeys((one["name"], one["decoded_with"]) for one in figures if "decoded_with" in one)
        if len({flags for _, flags in told}) < 2:
            return ""
        return f"Decoded with other flags: {'; '.join(f'{name}: `{flags}`' for name, flags in told)}."

    @abstractmethod
    def read(self, run: TrainedRun) -> List[str]:
        """What a run wrote, a line a reference.

        Raises:
            ValueError, OSError: if the run lacks it.
        """

    @abstractmethod
    def read_text(self, path: Path) -> List[str]:
        """A text of another origin, a line a reference.

        Raises:
            ValueError, OSError: if it cannot be compared.
        """
