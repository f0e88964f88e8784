"""What ways to choose among a parser's trees are worth: figures, tables, and tests of their differences.

Shapes: N sentences, K samples.
"""

import statistics
from dataclasses import asdict, astuple
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import numpy as np

from fairseq_plugins.reports.differences import differences, differences_as_markdown
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.scoring.paired_bootstrap import bootstrap_means
from fairseq_plugins.trees.bracket_scores import BracketCounts
from fairseq_plugins.trees.choices import SystemScore
from fairseq_plugins.trees.sentences import Sentence

Systems = Mapping[str, Sequence[SystemScore]]
"""Ways to choose by name, each with the score of every run."""

RATES = {"recall": "recall", "precision": "precision", "f1": "F1", "exact": "exact"}
"""Rates of :class:`BracketCounts`, and how tables, which have percentages, call them."""

TESTED = ("f1", "exact")
"""The rates whose differences are tested."""


def run_names(name: str, num_runs: int) -> List[str]:
    """Names of a system's rows: its own, or with a number from 1 for each of several runs."""
    return [name] if num_runs == 1 else [f"{name} {number}" for number in range(1, num_runs + 1)]


def reranking_figures(
    sentences: Sequence[Sentence], systems: Systems, *, tested: Sequence[Dict[str, Any]]
) -> Dict[str, Any]:
    """All figures of a split, rates as parts of one.

    Args:
        sentences: of the split.
        systems: with the score of each run.
        tested: from :func:`reranking_differences`, in percentages.
    """
    figures: Dict[str, Any] = {**_sizes(sentences), "systems": {}}
    means = {name: _means(runs) for name, runs in systems.items() if len(runs) > 1}
    for name, runs in systems.items():
        for row, score in zip(run_names(name, len(runs)), runs):
            rates = {rate: getattr(score.counts, rate) for rate in RATES}
            figures["systems"][row] = {**asdict(score.counts), **rates, "skipped": score.skipped}
    return {**figures, **({"means": means} if means else {}), **({"differences": tested} if tested else {})}


def reranking_differences(systems: Systems, *, baseline: str) -> List[Dict[str, Any]]:
    """How far each other system is above the baseline, its runs taken together, in percentages.

    Sentences that a run skipped bring nothing to that run.
    """
    scores = {}
    for rate in TESTED:

        def percentage(total: np.ndarray, rate: str = rate) -> float:
            return 100 * getattr(BracketCounts(*total.tolist()), rate)

        scores[RATES[rate]] = {name: bootstrap_means(percentage, _statistics(runs)) for name, runs in systems.items()}
    return differences(scores, baseline=baseline)


def reranking_as_text(
    name: str,
    sentences: Sequence[Sentence],
    systems: Systems,
    *,
    tested: Sequence[Dict[str, Any]],
    baseline: Optional[str],
) -> str:
    """A table of percentages, the sentences that a row leaves out, and the differences.

    Args:
        name: of the split.
        sentences: of it.
        systems: with the score of each run.
        tested: from :func:`reranking_differences`, where there is a baseline.
        baseline: a system's name.
    """
    sizes = _sizes(sentences)
    rows: List[Sequence[object]] = []
    left_out: List[str] = []
    for system, runs in systems.items():
        for row, score in zip(run_names(system, len(runs)), runs):
            rates = [getattr(score.counts, rate) for rate in RATES]
            rows.append([row, *_percentages(rates), score.counts.num_trees])
            if score.skipped:
                left_out.append(_left_out(row, score.skipped))
        if len(runs) > 1:
            means = _means(runs).values()
            rows.append([f"{system}, mean", *_percentages(one["mean"] for one in means), None])
            deviations = _percentages(one["standard_deviation"] for one in means)
            rows.append([f"{system}, standard deviation", *deviations, None])
    columns = ["system", *RATES.values(), "sentences scored"]
    head = (
        f"{name}: {sizes['sentences']:,} sentences, {sizes['candidates']:,} candidates, "
        f"{sizes['different']:,} different"
    )
    parts = ["\n".join([head, "", as_table(columns, rows), *left_out])]
    if baseline is not None:
        parts.append(differences_as_markdown(tested, baseline=baseline))
    return "\n\n".join(parts)


def _sizes(sentences: Sequence[Sentence]) -> Dict[str, int]:
    """How much there was to choose from."""
    return {
        "sentences": len(sentences),
        "candidates": sum(sentence.num_candidates for sentence in sentences),
        "different": sum(len(sentence.hypotheses) for sentence in sentences),
    }


def _means(runs: Sequence[SystemScore]) -> Dict[str, Dict[str, float]]:
    found = {}
    for rate in RATES:
        values = [getattr(score.counts, rate) for score in runs]
        found[rate] = {"mean": statistics.mean(values), "standard_deviation": statistics.stdev(values)}
    return found


def _statistics(runs: Sequence[SystemScore]) -> List[np.ndarray]:
    """Counts of each sentence for each run, (N, number of counts)."""
    return [np.array([astuple(counts) for counts in run.of_sentences]) for run in runs]


def _percentages(rates: Iterable[float]) -> List[str]:
    return [f"{100 * rate:.2f}" for rate in rates]


def _left_out(row: str, skipped: Sequence[str]) -> str:
    shown = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
    return (
        f"{row} leaves out {len(skipped)} (no candidate, other words than the gold tree, or punctuation alone): {shown}"
    )
