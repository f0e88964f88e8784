"""How trainings went, as a table."""

from typing import Any, Dict, Sequence

from fairseq_plugins.reports.tables import Cell, table_of_runs
from fairseq_plugins.scoring.corpus_metrics import TITLES


def learning_table(runs: Sequence[Dict[str, Any]]) -> str:
    """A line for each training, with means over the seeds of one name.

    Args:
        runs: each with ``name``, ``seed`` and the figures of a :class:`LoggedTraining`.
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
    """The best of all epochs, each figure by itself."""
    return {
        "lowest valid perplexity": Cell(figures["lowest_valid_perplexity"]),
        **{f"highest valid {TITLES[metric]}": Cell(score) for metric, score in figures["highest_valid_scores"].items()},
    }


def cost_cells(figures: Dict[str, Any]) -> Dict[str, Cell]:
    """What the training took."""
    return {
        "words per second": Cell(figures["words_per_second"], ",.0f", mean="none"),
        "hours": Cell(figures["hours"], mean="none"),
    }
