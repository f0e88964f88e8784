"""Trained models compared: figures of each run, means over seeds, learning curves."""

import statistics
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from fairseq_plugins.reports.curves import draw_learning_curves
from fairseq_plugins.reports.metrics import Figures, Metric
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import Cell, as_table
from fairseq_plugins.reports.trained_run import read_run
from fairseq_plugins.scoring.corpus_metrics import TITLES


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
        **{f"valid {TITLES[metric]}": Cell(score) for metric, score in figures.get("valid_scores", {}).items()},
    }


def _means(same: Sequence[Dict[str, Cell]]) -> Dict[str, Cell]:
    return {
        column: Cell(statistics.mean(cells[column].value for cells in same), cell.format)
        for column, cell in same[0].items()
        if cell.mean == "taken" and all(column in cells for cells in same)
    }
