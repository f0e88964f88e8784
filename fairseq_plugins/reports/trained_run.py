"""What a training by ``fairseq-train`` left in its ``--save-dir``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

from fairseq.models import BaseFairseqModel

from fairseq_plugins.evaluation.checkpoints import load_checkpoint
from fairseq_plugins.models.checkpoint_files import check_checkpoints
from fairseq_plugins.reports.logged_training import LoggedTraining, read_logged_training


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished training.

    Attributes:
        name: how tables name it; runs of one name differ in their seed.
        checkpoint: in the ``--save-dir``, beside ``train.log``.
        data: directory with the data.
        model: that of the checkpoint.
        seed: of the training.
        training: what its log says.
    """

    name: str
    checkpoint: Path
    data: str
    model: BaseFairseqModel
    seed: int
    training: LoggedTraining

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
            **self.training.figures(),
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
    training = read_logged_training(checkpoint.parent)
    model, config = load_checkpoint(checkpoint, data)
    return TrainedRun(
        name=name,
        checkpoint=checkpoint,
        data=data,
        model=model,
        seed=config.common.seed,
        training=training,
    )
