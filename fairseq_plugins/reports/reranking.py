"""Tables of reranked trees. N is the number of sentences."""

import statistics
from dataclasses import asdict, astuple
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, TypeVar

import numpy as np

from fairseq_plugins.metrics.bootstrap import bootstrap_means
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import (
    Cell,
    as_table,
    differences,
    differences_as_markdown,
    summary_names,
    summary_rows,
)
from fairseq_plugins.trees.reranking import ORACLE, Sentence, Systems, SystemScore
from fairseq_plugins.trees.trees import BracketCounts

RATES = {"recall": "recall", "precision": "precision", "f1": "F1", "exact": "exact"}
"""Rates of :class:`BracketCounts` (fractions), with their titles in tables (percentages)."""

SCORED = "sentences scored"
"""Title of a column."""

TESTED = ("f1", "exact")
"""The rates whose differences are tested."""


Run = TypeVar("Run")


def by_run(systems: Mapping[str, Sequence[Run]]) -> Dict[str, Run]:
    """The runs of systems by the names of their rows. Several runs of a system are numbered from 1."""
    return {
        name if len(runs) == 1 else f"{name} {number}": run
        for name, runs in systems.items()
        for number, run in enumerate(runs, start=1)
    }


def row_names(name: str, runs: Sequence[object]) -> List[str]:
    """All names of a system in tables and figures."""
    return [name] if len(runs) == 1 else [name, *by_run({name: runs}), *summary_names(name)]


def reranking_report(
    name: str,
    sentences: Sequence[Sentence],
    systems: Systems,
    *,
    checkpoints: Mapping[str, str],
    baseline: Optional[str] = None,
) -> Report:
    """What systems choose on the split ``name``. Rates and their differences are fractions, in the text per cent.

    ``checkpoints`` are paths of models by the names of their rows. The other systems are tested against a ``baseline``.
    """
    rows: Dict[str, Any] = {}
    for row, score in by_run(systems).items():
        origin = {"checkpoint": checkpoints[row]} if row in checkpoints else {}
        rates = {rate: getattr(score.counts, rate) for rate in RATES}
        rows[row] = {**origin, **asdict(score.counts), **rates, "skipped": score.skipped}
    figures: Dict[str, Any] = {
        "sentences": len(sentences),
        "candidates": sum(sentence.num_candidates for sentence in sentences),
        "different": sum(len(sentence.hypotheses) for sentence in sentences),
        "systems": rows,
    }
    if means := {name: _means(runs) for name, runs in systems.items() if len(runs) > 1}:
        figures["means"] = means
    if baseline is not None:
        figures.update(baseline=baseline, differences=_differences(systems, baseline=baseline))
    return Report(figures, _text(name, figures, systems))


def _differences(systems: Systems, *, baseline: str) -> List[Dict[str, Any]]:
    """Difference of each system from the baseline as a fraction, over all runs of the system together.

    The oracle is left out. A sentence that a run skipped adds no counts to that run.
    """
    counts = {  # (N, number of counts) for each run
        name: [np.array([astuple(one) for one in run.of_sentences]) for run in runs]
        for name, runs in systems.items()
        if name != ORACLE
    }
    scores = {
        rate: {name: bootstrap_means(partial(_rate, rate=rate), runs) for name, runs in counts.items()}
        for rate in TESTED
    }
    return differences(scores, baseline=baseline)


def _text(name: str, figures: Mapping[str, Any], systems: Systems) -> str:
    """A table of percentages, the sentences that a row leaves out, and the differences from the baseline."""
    rows: Dict[str, Dict[str, Cell]] = {}
    for system, runs in systems.items():
        cells = [_cells(score) for score in runs]
        rows.update({**by_run({system: cells}), **summary_rows(system, cells)})
    left_out = [_left_out(row, score.skipped) for row, score in by_run(systems).items() if score.skipped]
    columns = [*RATES.values(), SCORED]
    head = "{sentences:,} sentences, {candidates:,} candidates, {different:,} different".format(**figures)
    table = as_table(["system", *columns], [[row, *map(cells.get, columns)] for row, cells in rows.items()])
    text = "\n".join([f"{name}: {head}", "", table, *left_out])
    if "differences" not in figures:
        return text
    in_points = [
        {**one, "differences": {RATES[rate]: _in_points(found) for rate, found in one["differences"].items()}}
        for one in figures["differences"]
    ]
    return f"{text}\n\n{differences_as_markdown(in_points, baseline=figures['baseline'])}"


def _means(runs: Sequence[SystemScore]) -> Dict[str, Dict[str, float]]:
    found = {}
    for rate in RATES:
        values = [getattr(score.counts, rate) for score in runs]
        found[rate] = {"mean": statistics.mean(values), "standard_deviation": statistics.stdev(values)}
    return found


def _rate(counts: np.ndarray, *, rate: str) -> float:
    return getattr(BracketCounts(*counts.tolist()), rate)


def _in_points(difference: Mapping[str, float]) -> Dict[str, float]:
    return {**difference, "value": 100 * difference["value"], "interval": 100 * difference["interval"]}


def _cells(score: SystemScore) -> Dict[str, Cell]:
    rates = {title: Cell(100 * getattr(score.counts, rate)) for rate, title in RATES.items()}
    return {**rates, SCORED: Cell(score.counts.num_trees, "d", mean="none")}


def _left_out(row: str, skipped: Sequence[str]) -> str:
    shown = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
    return (
        f"{row} leaves out {len(skipped)} (no candidate, other words than the gold tree, or punctuation alone): {shown}"
    )
