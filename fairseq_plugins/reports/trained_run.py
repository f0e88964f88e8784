"""What a training by ``fairseq-train`` left in its ``--save-dir``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from fairseq.models import BaseFairseqModel

from fairseq_plugins.evaluation.checkpoints import load_checkpoint, training_config
from fairseq_plugins.models.checkpoint_files import check_checkpoints, read_state
from fairseq_plugins.reports.logged_training import LoggedTraining, read_logged_training
from fairseq_plugins.reports.training_log import find_log, holds_validation, read_num_parameters, read_seed


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished training.

    Attributes:
        name: how tables name it; runs of one name differ in their seed.
        checkpoint: in the ``--save-dir``, beside ``train.log``; it need not be there any more.
        data: directory with the data.
        model: that of the checkpoint, None where it is not there.
        num_parameters: of the model.
        num_learning_parameters: of those.
        seed: of the training.
        training: what its log says.
    """

    name: str
    checkpoint: Path
    data: str
    model: Optional[BaseFairseqModel]
    num_parameters: int
    num_learning_parameters: int
    seed: int
    training: LoggedTraining

    @property
    def save_dir(self) -> Path:
        """Where the training left it."""
        return self.checkpoint.parent

    def figures(self) -> Dict[str, Any]:
        """What every report has: name, parameters, seed, epochs, the validation curves with their best points, cost."""
        return {
            "name": self.name,
            "checkpoint": None if self.model is None else self.checkpoint.name,
            "parameters": self.num_parameters,
            "learning_parameters": self.num_learning_parameters,
            "seed": self.seed,
            **self.training.figures(),
        }


def checkpoint_of(path: Path) -> Path:
    """The checkpoint of a run, given by its ``--save-dir`` or as a checkpoint in it; it need not be there."""
    return path / "checkpoint_best.pt" if path.is_dir() else path


def read_run(name: str, path: Path, *, data: str) -> TrainedRun:
    """Read a finished training.

    Where ``checkpoint_best.pt`` is not there any more, as in what was fetched from another machine, the log tells the
    seed and the size of the model.

    Args:
        name: how tables name it.
        path: its ``--save-dir``, whose ``checkpoint_best.pt`` is taken, or a checkpoint in it.
        data: directory with the data.

    Raises:
        ValueError, OSError: if the log, or a checkpoint that is named, is missing, or is not readable, or they are of
            different trainings.
    """
    checkpoint = checkpoint_of(path)
    if not path.is_dir():
        check_checkpoints([checkpoint])
    training = read_logged_training(checkpoint.parent)
    if checkpoint.exists():
        _check_log(checkpoint)
        model, config = load_checkpoint(checkpoint, data)
        sizes = _num_parameters(model)
        seed = config.common.seed
    else:
        model = None
        log = find_log(checkpoint.parent)
        sizes = read_num_parameters(log)
        seed = read_seed(log)
    return TrainedRun(
        name=name,
        checkpoint=checkpoint,
        data=data,
        model=model,
        num_parameters=sizes[0],
        num_learning_parameters=sizes[1],
        seed=seed,
        training=training,
    )


def _check_log(checkpoint: Path) -> None:
    """Refuse a log without the validation by which the checkpoint was saved; some are saved without one."""
    state, log = read_state(checkpoint), find_log(checkpoint.parent)
    value: Optional[float] = state["extra_state"].get("val_loss")
    metric: str = training_config(state).checkpoint.best_checkpoint_metric
    num_updates: int = state["optimizer_history"][-1]["num_updates"]
    if value is not None and not holds_validation(log, num_updates=num_updates, metric=metric, value=value):
        raise ValueError(
            f"{log} is not the log of the training that left {checkpoint}: it has no validation with {metric} "
            f"{value:g} after update {num_updates:,}; bring the log of that training there"
        )


def _num_parameters(model: BaseFairseqModel) -> Tuple[int, int]:
    """All, and those that learn."""
    learning = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return sum(parameter.numel() for parameter in model.parameters()), sum(parameter.numel() for parameter in learning)
