"""Differences between systems and a baseline, tested by the paired bootstrap.

Shapes: K samples.
"""

from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.scoring.paired_bootstrap import paired_difference


def differences(scores: Mapping[str, Mapping[str, np.ndarray]], *, baseline: str) -> List[Dict[str, Any]]:
    """How far each system is above the baseline by each metric, its runs taken together.

    Args:
        scores: by metric and system, see :func:`~fairseq_plugins.scoring.paired_bootstrap.bootstrap_means`, (1 + K).
        baseline: a system's name.
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
    """A line for each system but the baseline, of differences from 0 to 100."""
    rows = [
        [
            one["name"],
            *(f"{x['value']:+.2f} +- {x['interval']:.2f} (p = {x['p']:.3f})" for x in one["differences"].values()),
        ]
        for one in found
    ]
    columns = [f"minus {baseline}", *(found[0]["differences"] if found else ())]
    told = "Paired bootstrap of the sentences, what all seeds made of one drawn together, p two-sided:"
    return f"{told}\n\n{as_table(columns, rows)}"
