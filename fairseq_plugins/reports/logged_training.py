"""What the log of a training says of it, finished or not."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable

from fairseq_plugins.reports.training_log import (
    find_log,
    read_hours,
    read_median_speed,
    read_score_curves,
    read_valid_curve,
)


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """A training by its log.

    Attributes:
        valid_curve: validation perplexity by epoch.
        score_curves: scores of the decoded validation set by epoch, by metric, where the training logged them.
        words_per_second: median speed of the training.
        hours: that the training took.
    """

    valid_curve: Dict[int, float]
    score_curves: Dict[str, Dict[int, float]]
    words_per_second: float
    hours: float

    def figures(self) -> Dict[str, Any]:
        """Epochs, the validation curves with their best points, cost."""
        return {
            "epochs": max(self.valid_curve),
            "lowest_valid_perplexity": _best(min, self.valid_curve.values()),
            "valid_curve": self.valid_curve,
            "highest_valid_scores": {metric: _best(max, curve.values()) for metric, curve in self.score_curves.items()},
            "score_curves": self.score_curves,
            "words_per_second": self.words_per_second,
            "hours": self.hours,
        }


def _best(choose: Callable[..., float], values: Iterable[float]) -> float:
    """Of those that are numbers."""
    return choose((value for value in values if not math.isnan(value)), default=math.nan)


def read_logged_training(save_dir: Path) -> LoggedTraining:
    """Read the log in the ``--save-dir`` of a training.

    Raises:
        ValueError, OSError: if it is missing, or holds no validation, speed or times.
    """
    log = find_log(save_dir)
    return LoggedTraining(
        valid_curve=read_valid_curve(log),
        score_curves=read_score_curves(log),
        words_per_second=read_median_speed(log),
        hours=read_hours(log),
    )
