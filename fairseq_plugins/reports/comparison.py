"""Comparison of trained models: figures of each run, means over seeds, significance, learning curves.

Shapes: K samples.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_plugins.data.text import read_lines
from fairseq_plugins.metrics.corpus import TITLES, bootstrap_scores, paired_difference
from fairseq_plugins.options import UserError
from fairseq_plugins.reports.metrics import Figures, Metric, TextMetric
from fairseq_plugins.reports.plots import draw_learning_curves
from fairseq_plugins.reports.tables import Cell, Report, as_table, table_of_runs
from fairseq_plugins.reports.training_log import TrainedRun, check_seeds, read_run


def differences(scores: Mapping[str, Mapping[str, np.ndarray]], *, baseline: str) -> List[Dict[str, Any]]:
    """Difference of each system from the baseline by each metric, over all runs of the system together.

    Args:
        scores: by metric and system, see :func:`~fairseq_plugins.metrics.corpus.bootstrap_means`, (1 + K).
        baseline: name of a system.
    """
    others = [name for name in next(iter(scores.values())) if name != baseline]
    return [
        {
            "name": name,
            "differences": {
                metric: asdict(paired_difference(by_system[name], by_system[baseline]))
                for metric, by_system in scores.items()
            },
        }
        for name in others
    ]


def differences_as_markdown(found: Sequence[Dict[str, Any]], *, baseline: str) -> str:
    """A line for each system except the baseline. Scores are on a scale from 0 to 100."""
    rows = [
        [
            one["name"],
            *(f"{x['value']:+.2f} +- {x['interval']:.2f} (p = {x['p']:.3f})" for x in one["differences"].values()),
        ]
        for one in found
    ]
    columns = [f"minus {baseline}", *(found[0]["differences"] if found else ())]
    caption = "Paired bootstrap of the sentences, what all seeds made of one drawn together, p two-sided:"
    return f"{caption}\n\n{as_table(columns, rows)}"


def learning_table(runs: Sequence[Dict[str, Any]]) -> str:
    """Table of learning curves: a line for each run, with means over the seeds of one name.

    Args:
        runs: ``name``, ``seed`` and figures of a :class:`LoggedTraining` for each run.
    """
    return table_of_runs(
        runs,
        lambda figures: {
            "seed": Cell(figures["seed"], "d", mean="none"),
            "epochs": Cell(figures["epochs"], "d", mean="none"),
            "last valid perplexity": Cell(figures["valid_curve"][figures["epochs"]]),
            **best_valid_cells(figures),
            **cost_cells(figures),
        },
        column="training",
    )


def best_valid_cells(figures: Dict[str, Any]) -> Dict[str, Cell]:
    """Best validation figures over all epochs, each figure by itself."""
    return {
        "lowest valid perplexity": Cell(figures["lowest_valid_perplexity"]),
        **{f"highest valid {TITLES[metric]}": Cell(score) for metric, score in figures["highest_valid_scores"].items()},
    }


def cost_cells(figures: Dict[str, Any]) -> Dict[str, Cell]:
    """Speed and duration of the run."""
    return {
        "words per second": Cell(figures["words_per_second"], ",.0f", mean="none"),
        "hours": Cell(figures["hours"], mean="none"),
    }


def compare_runs(
    runs: Sequence[Tuple[str, Path]],
    metric: Metric,
    *,
    data: str,
    texts: Sequence[Tuple[str, Path]] = (),
    baseline: Optional[str] = None,
    command: str,
) -> Report:
    """Measure runs and texts, and compare them in tables and a picture of the learning curves.

    Args:
        runs: name, and ``--save-dir`` or checkpoint, of each run. Runs of one name differ in their seed.
        metric: metric of the comparison.
        data: directory with the data.
        texts: name and file of texts from elsewhere.
        baseline: name of the runs or texts against which the others are tested by sentence, or None for no test.
        command: command line of the user.

    Raises:
        UserError, OSError: if a run or a text cannot be measured, if a run and a text have one name, or if there is
            no such baseline.
    """
    if both := {name for name, _ in runs} & {name for name, _ in texts}:
        raise UserError(f"{min(both)} names a run and a text: give the text another name")
    _check_baseline(baseline, metric, names=[name for name, _ in (*runs, *texts)])
    read = [read_run(name, path, data=data) for name, path in runs]
    _check_trainings(read)
    for run in read:
        metric.check(run)
    others = [{"name": name, **metric.measure_text(path)} for name, path in texts]
    trained = [{**run.figures(), **metric.measure(run)} for run in read]
    found = [*trained, *others]
    figures: Figures = {"runs": found}
    parts = [as_markdown(found, metric), _note_on_checkpoints(read), metric.note(found)]
    if baseline is not None and isinstance(metric, TextMetric):
        written = [(run.name, metric.read(run)) for run in read]
        written += [(name, metric.read_text(path)) for name, path in texts]
        figures["differences"] = text_differences(written, metric, baseline=baseline)
        parts.append(differences_as_markdown(figures["differences"], baseline=baseline))
    return Report(
        text="\n\n".join(filter(None, parts)),
        figures=figures,
        command=command,
        picture=draw_learning_curves(trained),
    )


def text_differences(
    written: Sequence[Tuple[str, Sequence[str]]], metric: TextMetric, *, baseline: str
) -> List[Dict[str, Any]]:
    """Difference of each system from the baseline by each metric, over all runs of the system together.

    Args:
        written: name of the system and lines of each run or text.
        metric: metric of text, with its reference.
        baseline: name of a system.
    """
    references = read_lines(metric.reference)
    systems: Dict[str, List[Sequence[str]]] = {}
    for name, lines in written:
        systems.setdefault(name, []).append(lines)
    scores = {}
    for one in tqdm(metric.compared, "paired bootstrap", unit=" metrics", disable=not sys.stderr.isatty()):
        corpus_metric = metric.corpus_metric(one)
        scores[TITLES[one]] = {
            name: bootstrap_scores(corpus_metric, runs, references) for name, runs in systems.items()
        }
    return differences(scores, baseline=baseline)


def _check_baseline(baseline: Optional[str], metric: Metric, *, names: Sequence[str]) -> None:
    if baseline is None:
        return
    if not isinstance(metric, TextMetric):
        raise UserError(f"--baseline {baseline}: sentences are compared by --metric bleu or rouge")
    if baseline not in names:
        raise UserError(f"--baseline {baseline}: no such name, choose one of {', '.join(dict.fromkeys(names))}")


def _check_trainings(runs: Sequence[TrainedRun]) -> None:
    """Check that runs of one name have different seeds and equal sizes, because means are taken over them."""
    check_seeds((run.name, run.seed, run.save_dir) for run in runs)
    for place, run in enumerate(runs):
        first = next((other for other in runs[:place] if other.name == run.name), None)
        if first is not None:
            sizes = [one.figures()["parameters"] for one in (first, run)]
            if sizes[0] != sizes[1]:
                raise UserError(
                    f"--path: runs that are called {run.name} have {sizes[0]:,} and {sizes[1]:,} parameters, and runs "
                    "of a name differ in their seed alone: give each system a name of its own"
                )


def _note_on_checkpoints(runs: Sequence[TrainedRun]) -> str:
    """Names of the runs whose checkpoint is missing."""
    gone = [f"{run.name} (seed {run.seed})" for run in runs if run.model is None]
    return f"By log and text alone, without the checkpoint: {'; '.join(gone)}." if gone else ""


def as_markdown(found: Sequence[Figures], metric: Metric) -> str:
    """A line for each run or text, with mean and standard deviation if there are several seeds."""
    return table_of_runs(
        found,
        lambda figures: {**_training_cells(figures), **metric.cells(figures), **_cost_cells(figures)},
        column="model",
    )


def _training_cells(figures: Figures) -> Dict[str, Cell]:
    if "seed" not in figures:
        return {}
    return {
        "parameters": Cell(figures["parameters"], ",d", mean="none"),
        **_frozen_cells(figures),
        "seed": Cell(figures["seed"], "d", mean="none"),
        "epochs": Cell(figures["epochs"], "d", mean="none"),
        **_valid_cells(figures),
    }


def _frozen_cells(figures: Figures) -> Dict[str, Cell]:
    """Number of trained parameters, if some are frozen."""
    learning = figures["learning_parameters"]
    return {} if learning == figures["parameters"] else {"that learn": Cell(learning, ",d", mean="none")}


def _valid_cells(figures: Figures) -> Dict[str, Cell]:
    """Validation perplexity of the checkpoint if it was measured, otherwise the best figures of all epochs."""
    if "valid_perplexity" in figures:
        return {"valid perplexity": Cell(figures["valid_perplexity"])}
    return best_valid_cells(figures)


def _cost_cells(figures: Figures) -> Dict[str, Cell]:
    return cost_cells(figures) if "hours" in figures else {}
