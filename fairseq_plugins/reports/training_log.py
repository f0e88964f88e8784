"""Finished or running training: figures from its log (``--log-format simple``) and its checkpoint."""

import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_plugins.evaluation.checkpoints import training_config
from fairseq_plugins.metrics.corpus import CORPUS_METRICS
from fairseq_plugins.models.checkpoints import check_checkpoints, read_state
from fairseq_plugins.options import UserError

NUMBER = r"(-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan))"
"""A number as fairseq prints it."""
FIGURE = re.compile(rf"([\w-]+)[ =]{NUMBER}")
"""A figure by its name: ``ppl 8.5`` of an epoch or a validation, ``ppl=8.5`` of an interval."""
LINE = re.compile(r"\| (train_inner|train|valid) \| epoch (\d{1,9})\b(.*)")
"""A line of figures: its kind, its epoch and the figures."""
SEED = re.compile(r"(?:'common': \{[^{}]*?'seed': |\| fairseq_cli\.train \| arch .*, seed )(\d+)")
"""The seed in the flags, which a run prints at each start: all flags with fairseq alone, else a summary."""
PARAMETERS = re.compile(r"\| num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
"""The sizes of the model, which fairseq prints at each start."""
START = "| fairseq.trainer | Preparing to load checkpoint "
"""Part of a line that fairseq logs at each start, with or without a checkpoint."""
BEGINNINGS = (
    "| fairseq.trainer | No existing checkpoint found ",
    "| fairseq.checkpoint_utils | loading pretrained model from ",
)
"""Parts of lines that fairseq logs when it starts a new run instead of resuming one."""


@dataclass(frozen=True)
class LogLine:
    """Figures by name of an interval (``train_inner``), an epoch (``train``) or a validation (``valid``)."""

    kind: str
    epoch: int
    figures: Dict[str, float]


def read_log(text: str) -> List[LogLine]:
    """The lines of figures in a log."""
    return [
        LogLine(kind, int(epoch), {name: float(number) for name, number in FIGURE.findall(rest)})
        for kind, epoch, rest in LINE.findall(text)
    ]


def figures_of(lines: Iterable[LogLine], kind: str, name: str) -> List[float]:
    """A figure of all lines of a kind that have it, such as ``wps`` or, on a GPU, ``gb_free`` of ``train_inner``."""
    return [line.figures[name] for line in lines if line.kind == kind and name in line.figures]


class TrainingLog:
    """Log of the last run in a ``--save-dir``, which may be unfinished. It is read once.

    Its properties raise a ``UserError`` if the log lacks the figures.

    Args:
        save_dir: directory of ``train.log``.

    Raises:
        UserError: if there is none.
        OSError: if it cannot be read.
    """

    def __init__(self, save_dir: Path) -> None:
        self.path = save_dir / "train.log"
        if not self.path.is_file():
            raise UserError(
                f"{self.path} does not exist: fairseq-plugins train writes it; by hand: mkdir -p SAVE_DIR; "
                "fairseq-train ... --log-format simple 2>&1 | tee -a SAVE_DIR/train.log"
            )
        # a full disk or a broken terminal may leave bytes that are not UTF-8
        text = self.path.read_text(encoding="utf-8", errors="replace")
        beginning = _last_beginning(text)
        # fairseq prints flags and model before it logs that a new run begins
        self._start = text[_last_beginning(text[:beginning]) : beginning or None]
        self._run = text[beginning:]
        self._lines = read_log(self._run)
        self._epochs = lines_of_epochs(self._lines)

    @property
    def seed(self) -> int:
        return int(self._printed_at_start(SEED, "flags")[0])

    @property
    def num_parameters(self) -> Tuple[int, int]:
        """Parameters of the model, and how many of them are trained."""
        total, learning = self._printed_at_start(PARAMETERS, "size of the model")
        return int(total.replace(",", "")), int(learning.replace(",", ""))

    def _printed_at_start(self, line: "re.Pattern[str]", what: str) -> Sequence[str]:
        found = [match.groups() for match in line.finditer(self._start)]
        if not found:
            raise UserError(
                f"{self.path} holds no {what}: fairseq-train prints it at the start, so wait for it, or keep the whole "
                "output"
            )
        return found[-1]

    @property
    def has_validation(self) -> bool:
        return bool(self._curve("valid", "ppl"))

    @property
    def valid_curve(self) -> Dict[int, float]:
        """Validation perplexity by epoch."""
        curve = self._curve("valid", "ppl")
        if not curve:
            raise UserError(
                f"{self.path} holds no validation: log with --log-format simple, or wait for the end of the first epoch"
            )
        return curve

    @property
    def train_curve(self) -> Dict[int, float]:
        """Training perplexity by finished epoch: the mean over its updates, with dropout. May be empty."""
        return self._curve("train", "ppl")

    def _curve(self, kind: str, name: str) -> Dict[int, float]:
        """A figure by epoch. The last line of an epoch counts."""
        return {line.epoch: line.figures[name] for line in self._epochs if line.kind == kind and name in line.figures}

    @property
    def score_curves(self) -> Dict[str, Dict[int, float]]:
        """Scores of the decoded validation set by metric, as ``--eval-scorer`` names it, and epoch. May be empty."""
        curves = {metric: self._curve("valid", metric) for metric in CORPUS_METRICS}
        return {metric: curve for metric, curve in curves.items() if curve}

    @property
    def words_per_second(self) -> float:
        """Median training speed in tokens, over intervals, or over epochs if no interval was logged."""
        speeds = figures_of(self._lines, "train_inner", "wps") or figures_of(self._lines, "train", "wps")
        if not speeds:
            raise UserError(
                f"{self.path} holds no training speed: log with --log-format simple and a smaller --log-interval"
            )
        return statistics.median(speeds)

    @property
    def hours(self) -> float:
        """Duration with validations and all parts of a resumed run. fairseq counts from 0 at every start."""
        parts = [
            [line.figures["wall"] for line in read_log(text) if line.kind != "valid" and "wall" in line.figures]
            for text in self._run.split(START)
        ]
        if not any(parts):
            raise UserError(f"{self.path} holds no times: log with --log-format simple")
        # a time that falls marks a start whose line is missing
        ends = [one for seconds in parts for one, after in zip(seconds, [*seconds[1:], 0]) if after < one]
        return sum(ends) / 3600

    def figures(self) -> Dict[str, Any]:
        """Epochs, validation curves, the best of all validations, speed and duration."""
        valid_curve, score_curves = self.valid_curve, self.score_curves
        return {
            "epochs": max(valid_curve),
            "lowest_valid_perplexity": _best(min, figures_of(self._epochs, "valid", "ppl")),
            "valid_curve": valid_curve,
            "train_curve": self.train_curve,
            "highest_valid_scores": {
                metric: _best(max, figures_of(self._epochs, "valid", metric)) for metric in score_curves
            },
            "score_curves": score_curves,
            "words_per_second": self.words_per_second,
            "hours": self.hours,
        }

    def check_belongs_to(self, checkpoint: Path) -> None:
        """Check that this log has the validation that preceded the saving of ``checkpoint``.

        A log that has no validation at all by the checkpoint's metric is accepted. Raises UserError if it has other
        validations only.
        """
        state = read_state(checkpoint)
        value: Optional[float] = state["extra_state"].get("val_loss")
        metric: str = training_config(state).checkpoint.best_checkpoint_metric
        num_updates: int = state["optimizer_history"][-1]["num_updates"]
        needed = {"num_updates", metric}
        found = [line.figures for line in self._lines if line.kind == "valid" and needed <= line.figures.keys()]
        logged = [figures[metric] for figures in found if figures["num_updates"] == num_updates]
        # fairseq writes six digits
        if value is not None and found and not np.isclose(logged, value, rtol=1e-5, atol=0, equal_nan=True).any():
            raise UserError(
                f"{self.path} is not the log of the run that left {checkpoint}: it has no validation with "
                f"{metric} {value:g} after update {num_updates:,}; bring the log of that run there"
            )


def _last_beginning(text: str) -> int:
    """Position at which the last run began, or 0."""
    return max(0, *map(text.rfind, BEGINNINGS))


def lines_of_epochs(lines: Iterable[LogLine]) -> List[LogLine]:
    """The lines. If epochs begin again, later epochs of the former run are left out."""
    kept: List[LogLine] = []  # their epochs ascend
    for line in lines:
        while kept and kept[-1].epoch > line.epoch:
            kept.pop()
        kept.append(line)
    return kept


def _best(choose: Callable[..., float], values: Iterable[float]) -> float:
    """The best value, without NaN."""
    return choose((value for value in values if not math.isnan(value)), default=math.nan)


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run.

    Attributes:
        name: name in tables. Runs of one name differ in their seed.
        checkpoint: path in the ``--save-dir``, beside ``train.log``. The file may be missing.
        figures: figures of every report: name, parameters, seed, and the log's figures.
    """

    name: str
    checkpoint: Path
    figures: Dict[str, Any]

    @property
    def save_dir(self) -> Path:
        """Directory of the checkpoint."""
        return self.checkpoint.parent


def best_checkpoint(path: Path) -> Path:
    """Path of a run's checkpoint: the given one, or ``checkpoint_best.pt`` in the given folder. It may not exist."""
    return path / "checkpoint_best.pt" if path.is_dir() else path


def read_run(name: str, path: Path) -> TrainedRun:
    """Read a finished run from a checkpoint, or from its ``--save-dir``, which stands for ``checkpoint_best.pt``.

    ``checkpoint_best.pt`` may be missing, for example because only small files were copied from another machine. Raises
    UserError or OSError if the log or a given checkpoint is missing or cannot be read, or if they belong to different
    runs.
    """
    checkpoint = best_checkpoint(path)
    if not path.is_dir():
        check_checkpoints([checkpoint])
    log = TrainingLog(checkpoint.parent)
    of_log = log.figures()
    if checkpoint.exists():
        log.check_belongs_to(checkpoint)
    parameters, learning = log.num_parameters
    figures = {
        "name": name,
        "checkpoint": checkpoint.name if checkpoint.exists() else None,
        "parameters": parameters,
        "learning_parameters": learning,
        "seed": log.seed,
        **of_log,
    }
    return TrainedRun(name=name, checkpoint=checkpoint, figures=figures)


def check_seeds(trainings: Iterable[Tuple[str, int, Path]]) -> None:
    """Check that no two runs have the same name and seed, because means are taken over the seeds of a name.

    Each run has a name, a seed and a ``--save-dir``.
    """
    first: Dict[Tuple[str, int], Path] = {}
    for name, seed, path in trainings:
        if (name, seed) in first:
            raise UserError(
                f"--path: {first[name, seed]} and {path} are both {name} with seed {seed}, and runs of a name "
                "differ in their seed: leave one out, or give it another name"
            )
        first[name, seed] = path
