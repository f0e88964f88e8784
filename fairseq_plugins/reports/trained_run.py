"""What a training by ``fairseq-train`` left in its ``--save-dir``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

from fairseq.models import BaseFairseqModel

from fairseq_plugins.evaluation.checkpoints import load_checkpoint
from fairseq_plugins.models.checkpoint_files import check_checkpoints
from fairseq_plugins.reports.training_log import (
    find_log,
    read_hours,
    read_median_speed,
    read_score_curves,
    read_valid_curve,
)


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished training.

    Attributes:
        name: how tables name it; runs of one name differ in their seed.
        checkpoint: in the ``--save-dir``, beside ``train.log``.
        data: directory with the data.
        model: that of the checkpoint.
        seed: of the training.
        valid_curve: validation perplexity by epoch.
        score_curves: scores of the decoded validation set by epoch, by metric, where the training logged them.
        words_per_second: median speed of the training.
        hours: that the training took.
    """

    name: str
    checkpoint: Path
    data: str
    model: BaseFairseqModel
    seed: int
    valid_curve: Dict[int, float]
    score_curves: Dict[str, Dict[int, float]]
    words_per_second: float
    hours: float

    @property
    def save_dir(self) -> Path:
        """Where the training left it."""
        return self.checkpoint.parent

    def figures(self) -> Dict[str, Any]:
        """What every report has: name, parameters, seed, epochs, the validation curves with their best points, cost."""
        learning = (parameter for parameter in self.model.parameters() if parameter.requires_grad)
        return {
            "name": self.name,
            "checkpoint": self.checkpoint.name,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "learning_parameters": sum(parameter.numel() for parameter in learning),
            "seed": self.seed,
            "epochs": max(self.valid_curve),
            "lowest_valid_perplexity": min(self.valid_curve.values()),
            "valid_curve": self.valid_curve,
            "highest_valid_scores": {metric: max(curve.values()) for metric, curve in self.score_curves.items()},
            "score_curves": self.score_curves,
            "words_per_second": self.words_per_second,
            "hours": self.hours,
        }


def read_run(name: str, path: Path, *, data: str) -> TrainedRun:
    """Read a finished training.

    Args:
        name: how tables name it.
        path: its ``--save-dir``, whose ``checkpoint_best.pt`` is taken, or a checkpoint in it.
        data: directory with the data.

    Raises:
        ValueError, OSError: if the checkpoint or the log beside it is missing, or is not readable.
    """
    checkpoint = path / "checkpoint_best.pt" if path.is_dir() else path
    check_checkpoints([checkpoint])
    log = find_log(checkpoint.parent)
    curve, score_curves = read_valid_curve(log), read_score_curves(log)
    model, config = load_checkpoint(checkpoint, data)
    return TrainedRun(
        name=name,
        checkpoint=checkpoint,
        data=data,
        model=model,
        seed=config.common.seed,
        valid_curve=curve,
        score_curves=score_curves,
        words_per_second=read_median_speed(log),
        hours=read_hours(log),
    )
