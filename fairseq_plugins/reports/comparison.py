"""Trained models compared: figures of each run, means over seeds, learning curves."""

import statistics
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

from fairseq_plugins.data.corpus import load_dictionary, load_token_stream
from fairseq_plugins.evaluation.binarised_pairs import target_language
from fairseq_plugins.evaluation.checkpoints import stateful_language_model
from fairseq_plugins.evaluation.generated_text import read_lines
from fairseq_plugins.evaluation.headlines import read_headlines, score_headlines
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity
from fairseq_plugins.evaluation.translations import Translation, read_plain_translation, read_translation, score
from fairseq_plugins.reports.curves import draw_learning_curves
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.reports.trained_run import TrainedRun, read_run
from fairseq_plugins.reports.training_log import read_median_speed
from fairseq_plugins.scoring.rouge import METRICS as ROUGE_METRICS
from fairseq_plugins.scoring.rouge import RougeSettings

Figures = Dict[str, Any]
"""What was found of a run, by name, for machines."""


@dataclass(frozen=True)
class Cell:
    """A figure of a table.

    Attributes:
        value: the figure.
        format: of the figure, as ``format`` takes it.
        interval: half the width of its 95 % confidence interval, where it is known.
        mean: "taken" over the runs of one name, or "none".
    """

    value: float
    format: str = ".2f"
    interval: Optional[float] = None
    mean: str = "taken"

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" +- {self.interval:.2f}"
        return f"{self.value:{self.format}}{interval}"


class Metric(ABC):
    """What runs are compared by."""

    takes_text: ClassVar[str] = "no"
    """Whether texts of other origin can stand beside the runs, "yes" or "no"."""

    @abstractmethod
    def measure(self, run: TrainedRun) -> Figures:
        """Figures of a run, besides those that all runs have.

        Raises:
            ValueError, OSError: if the run lacks what is measured.
        """

    def measure_text(self, path: Path) -> Figures:
        """Figures of a text of another origin.

        Raises:
            ValueError: if it cannot be scored.
        """
        raise NotImplementedError

    @abstractmethod
    def cells(self, figures: Figures) -> Dict[str, Cell]:
        """The metric's columns of a run or a text."""

    def note(self, figures: Sequence[Figures]) -> str:
        """What must be the same where figures are compared."""
        return ""


class PerplexityMetric(Metric):
    """Perplexity of language models: one row, carried state, as ``evaluate_lm``; and the speed of their training."""

    def __init__(self, *, device: str = "cpu") -> None:
        self.device = device

    def measure(self, run: TrainedRun) -> Figures:
        model = stateful_language_model(run.model, run.save_dir / "checkpoint_best.pt").to(self.device)
        dictionary = load_dictionary(run.data)
        figures: Figures = {"words_per_second": read_median_speed(run.save_dir / "train.log")}
        for split in ("valid", "test"):
            result = evaluate_perplexity(
                [model],
                load_token_stream(run.data, split, dictionary),
                unknown=dictionary.unk(),
                device=self.device,
                show_progress=sys.stderr.isatty(),
            )
            figures[f"{split}_perplexity"] = result.perplexity
        return figures

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        return {
            "test perplexity": Cell(figures["test_perplexity"]),
            "words per second": Cell(figures["words_per_second"], ",.0f", mean="none"),
        }


class BleuMetric(Metric):
    """BLEU and chrF of translations, as ``evaluate_translation`` left them in ``SAVE_DIR/test``."""

    takes_text = "yes"

    def __init__(self, reference: Path) -> None:
        self.reference = reference
        self.lines = read_lines(reference)

    def measure(self, run: TrainedRun) -> Figures:
        translation = read_translation(
            run.save_dir / "test/generate.txt",
            references=self.lines,
            reference_name=str(self.reference),
            language=target_language(Path(run.data), "test"),
        )
        return self._scored(translation)

    def measure_text(self, path: Path) -> Figures:
        name = str(self.reference)
        return self._scored(read_plain_translation(path, references=self.lines, reference_name=name))

    def _scored(self, translation: Translation) -> Figures:
        return {"scores": [asdict(item) for item in score(translation, self.lines)]}

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        names = ("BLEU", "chrF", "tokenised BLEU")
        return {name: Cell(item["value"], interval=item["interval"]) for name, item in zip(names, figures["scores"])}

    def note(self, figures: Sequence[Figures]) -> str:
        return f"BLEU, chrF, tokenised BLEU: `{'; '.join(item['signature'] for item in figures[0]['scores'])}`."


class RougeMetric(Metric):
    """ROUGE of headlines, as ``evaluate_rouge`` left them in ``SAVE_DIR/test``, and their length."""

    takes_text = "yes"

    def __init__(self, reference: Path) -> None:
        self.reference = reference

    def measure(self, run: TrainedRun) -> Figures:
        path = run.save_dir / "test/generate.txt"
        return self._scored(read_headlines(path), path)

    def measure_text(self, path: Path) -> Figures:
        return self._scored(read_lines(path), path)

    def _scored(self, hypotheses: List[str], path: Path) -> Figures:
        scores = score_headlines(hypotheses, str(path), [self.reference], RougeSettings())
        words = statistics.mean(len(line.split()) for line in hypotheses)
        return {"scores": [asdict(item) for item in scores], "words": words}

    def cells(self, figures: Figures) -> Dict[str, Cell]:
        scores = zip(ROUGE_METRICS.values(), figures["scores"])
        return {
            "words": Cell(figures["words"], ".1f", mean="none"),
            **{f"{name} F1": Cell(item["f1"], interval=item["f1_interval"]) for name, item in scores},
        }

    def note(self, figures: Sequence[Figures]) -> str:
        return f"ROUGE: `{RougeSettings().signature(num_references=1)}`."


def compare_runs(
    runs: Sequence[Tuple[str, Path]],
    metric: Metric,
    *,
    data: str,
    texts: Sequence[Tuple[str, Path]] = (),
    command: str,
) -> Report:
    """Measure runs and texts, and compare them in a table and a picture of the learning curves.

    Args:
        runs: name and ``--save-dir`` of each; those of one name differ in their seed.
        metric: what they are compared by.
        data: directory with the data.
        texts: name and file of texts of other origin.
        command: what was typed.

    Raises:
        ValueError, OSError: if a run or a text lacks what is measured.
    """
    read = [read_run(name, save_dir, data=data) for name, save_dir in runs]
    trained = [{**run.figures(), **metric.measure(run)} for run in read]
    others = [{"name": name, **metric.measure_text(path)} for name, path in texts]
    found = [*trained, *others]
    text = as_markdown(found, metric)
    note = metric.note(found)
    return Report(
        text=f"{text}\n\n{note}" if note else text,
        figures={"runs": found},
        command=command,
        picture=draw_learning_curves(trained),
    )


def as_markdown(found: Sequence[Figures], metric: Metric) -> str:
    """A line for each run or text and, where there are several seeds, one for their mean."""
    rows: List[Dict[str, Any]] = []
    for name in dict.fromkeys(figures["name"] for figures in found):
        same = [{**_training_cells(figures), **metric.cells(figures)} for figures in found if figures["name"] == name]
        rows += [{"model": name, **cells} for cells in same]
        if len(same) > 1:
            rows.append({"model": f"{name}, mean", **_means(same)})
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return as_table(columns, [[row.get(column) for column in columns] for row in rows])


def _training_cells(figures: Figures) -> Dict[str, Cell]:
    if "seed" not in figures:
        return {}
    return {
        "parameters": Cell(figures["parameters"], ",d", mean="none"),
        "seed": Cell(figures["seed"], "d", mean="none"),
        "epochs": Cell(figures["epochs"], "d", mean="none"),
        "valid perplexity": Cell(figures["valid_perplexity"]),
    }


def _means(same: Sequence[Dict[str, Cell]]) -> Dict[str, Cell]:
    return {
        column: Cell(statistics.mean(cells[column].value for cells in same), cell.format)
        for column, cell in same[0].items()
        if cell.mean == "taken" and all(column in cells for cells in same)
    }
