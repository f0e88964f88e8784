"""How well trainings predict the validation set for what they know of the training set, as a table and as a picture."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from fairseq_plugins.reports.curves import MOST_MARKED
from fairseq_plugins.reports.pictures import as_label, new_picture, write_plain_numbers
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.reports.training_log import find_log, read_train_curve, read_valid_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Generalization:
    """Perplexities of a training, by epoch.

    Attributes:
        name: how tables name it.
        train: of the training set, the mean over the updates of the epoch, with dropout.
        valid: of the validation set, after the epoch.
    """

    name: str
    train: Dict[int, float]
    valid: Dict[int, float]

    @property
    def best_epoch(self) -> int:
        """The epoch of the lowest perplexity of the validation set; one without a number is none."""
        return min(self.valid, key=lambda epoch: (math.isnan(self.valid[epoch]), self.valid[epoch]))

    def valid_at(self, level: float) -> Optional[float]:
        """Perplexity of the validation set where that of the training set first falls to a level.

        Between two epochs the logarithm of one is taken as linear in that of the other; None where no two epochs with
        finite perplexities enclose it.
        """
        points = list(zip(self.train.values(), self.valid.values()))
        for (above, before), (below, after) in zip(points, points[1:]):
            if above >= level >= below and all(map(math.isfinite, (above, before, after))):
                share = math.log(above / level) / math.log(above / below) if above > below else 0.0
                return before * (after / before) ** share
        return None


def read_generalization(name: str, save_dir: Path) -> Generalization:
    """Read the log of a training; epochs that lack one of both perplexities are left out.

    Args:
        name: how tables name it.
        save_dir: where ``train.log`` is.

    Raises:
        ValueError, OSError: if there is no log, or no epoch with both.
    """
    log = find_log(save_dir)
    train, valid = read_train_curve(log), read_valid_curve(log)
    epochs = [epoch for epoch in train if epoch in valid]
    if not epochs:
        raise ValueError(f"{log} holds no epoch that was finished and validated")
    return Generalization(
        name=name, train={epoch: train[epoch] for epoch in epochs}, valid={epoch: valid[epoch] for epoch in epochs}
    )


def generalization_table(runs: Sequence[Generalization], *, levels: Sequence[float]) -> str:
    """A training a line: its best epoch, and the validation set at equal perplexities of the training set."""
    columns = ["model", "best epoch", "train", "valid", *(f"valid at train {level:g}" for level in levels)]
    rows: List[List[object]] = []
    for run in runs:
        best, at = run.best_epoch, [run.valid_at(level) for level in levels]
        cells = [None if valid is None else f"{valid:.2f}" for valid in at]
        rows.append([run.name, best, f"{run.train[best]:.2f}", f"{run.valid[best]:.2f}", *cells])
    return as_table(columns, rows)


def generalization_record(runs: Sequence[Generalization], *, levels: Sequence[float]) -> List[Dict[str, Any]]:
    """The curves and what the table has, with full precision."""
    return [
        {
            **asdict(run),
            "best_epoch": run.best_epoch,
            "valid_at": [{"train": level, "valid": run.valid_at(level)} for level in levels],
        }
        for run in runs
    ]


def draw_generalization(runs: Sequence[Generalization]) -> "Figure":
    """Validation against training perplexity, a point an epoch and a line a training, which goes on to the right."""
    picture = new_picture()
    axes = picture.subplots()
    for run in runs:
        marker = "o" if len(run.train) <= MOST_MARKED else None
        axes.plot(
            list(run.train.values()), list(run.valid.values()), marker=marker, markersize=4, label=as_label(run.name)
        )
    axes.set(xlabel="training perplexity", ylabel="validation perplexity", xscale="log", yscale="log")
    axes.invert_xaxis()
    for axis in (axes.xaxis, axes.yaxis):
        write_plain_numbers(axis)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture
