"""Finished or running training: figures from its log (``--log-format simple``), its checkpoint, and provenance."""

import math
import platform
import re
import statistics
import subprocess
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from fairseq.models import BaseFairseqModel

from fairseq_plugins.evaluation.checkpoints import load_checkpoint, training_config
from fairseq_plugins.metrics.corpus import CORPUS_METRICS
from fairseq_plugins.models.checkpoints import check_checkpoints, read_state
from fairseq_plugins.ops.matmul import has_native_bfloat16
from fairseq_plugins.options import UserError

NUMBER = r"(-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan))"
"""A number as fairseq prints it."""
EPOCH_NUMBER = r"epoch (\d{1,9})\b"
VALIDATION = re.compile(rf"\| valid \| {EPOCH_NUMBER} \|.*?\| ppl {NUMBER}")
TRAINING = re.compile(rf"\| train \| {EPOCH_NUMBER} \|.*?\| ppl {NUMBER}")
VALIDATION_LINE = re.compile(rf"\| valid \| {EPOCH_NUMBER} (\|.*)")
NUM_UPDATES = re.compile(r"\| num_updates (\d{1,15})\b")
VALIDATION_SCORE = re.compile(rf"\| ({'|'.join(CORPUS_METRICS)}) {NUMBER}")
SPEED = re.compile(rf"\| train_inner \|.*? wps={NUMBER}")
EPOCH_SPEED = re.compile(rf"\| train \| {EPOCH_NUMBER} \|.*? wps {NUMBER}")
WALL = re.compile(rf"\| train(?:_inner)? \|.*? \bwall[= ]{NUMBER}")
EPOCH = re.compile(rf"\| (?:train|train_inner|valid) \| {EPOCH_NUMBER}")
FREE_GIBIBYTES = re.compile(rf"gb_free={NUMBER}")
SEED = re.compile(r"(?:'common': \{[^{}]*?'seed': |\| fairseq_cli\.train \| arch .*, seed )(\d+)")
"""The seed in the flags, which a training prints at each start: all flags with fairseq alone, else a summary."""
PARAMETERS = re.compile(r"\| num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
"""The sizes of the model, which fairseq prints at each start."""
START = "| fairseq.trainer | Preparing to load checkpoint "
"""In a line that fairseq logs at each start, with or without a checkpoint."""
BEGINNINGS = (
    "| fairseq.trainer | No existing checkpoint found ",
    "| fairseq.checkpoint_utils | loading pretrained model from ",
)
"""In lines that fairseq logs when it starts a new run instead of resuming one."""


def find_log(save_dir: Path) -> Path:
    """The log in the ``--save-dir`` of a run.

    Raises:
        UserError: if there is none.
    """
    log = save_dir / "train.log"
    if not log.is_file():
        raise UserError(
            f"{log} does not exist: it is what a training prints, which recipes and the command train write there; "
            "by hand: mkdir -p SAVE_DIR; fairseq-train ... --log-format simple 2>&1 | tee -a SAVE_DIR/train.log"
        )
    return log


def read_log(path: Path) -> str:
    """A log as text. Bytes that are not UTF-8, such as a full disk or a broken terminal leaves, are replaced.

    Raises:
        OSError: if there is no log.
    """
    return path.read_text(encoding="utf-8", errors="replace")


def _read_last_run(path: Path) -> str:
    """The part of a log that belongs to the last run in the folder."""
    text = read_log(path)
    return text[_last_beginning(text) :]


def _last_beginning(text: str) -> int:
    """Position at which the last run began, or 0."""
    return max(0, *map(text.rfind, BEGINNINGS))


def read_seed(path: Path) -> int:
    """Seed of the last run in the log.

    Raises:
        UserError: if the log does not have it.
        OSError: if there is no log.
    """
    return int(_last_start(path, SEED, what="flags")[0])


def read_num_parameters(path: Path) -> Tuple[int, int]:
    """Parameters of the model of the last run, and how many of them are trained.

    Raises:
        UserError: if the log does not have them.
        OSError: if there is no log.
    """
    total, learning = (
        int(number.replace(",", "")) for number in _last_start(path, PARAMETERS, what="size of the model")
    )
    return total, learning


def _last_start(path: Path, line: "re.Pattern[str]", *, what: str) -> Sequence[str]:
    """Groups that ``line`` captures in the output with which the last run began.

    fairseq prints flags and model before it logs that a new run begins, so they stand above that line.
    """
    text = read_log(path)
    start = text[: _last_beginning(text) or None]
    found = [match.groups() for match in line.finditer(start, _last_beginning(start))]
    if not found:
        raise UserError(
            f"{path} holds no {what}, which fairseq-train prints as it starts: wait until it has, or keep all that it "
            "prints"
        )
    return found[-1]


def lines_of_epochs(text: str) -> str:
    """The lines of training and validation. If epochs begin again, later epochs of the former run are left out."""
    lines: Dict[int, List[str]] = {}  # its epochs ascend
    for line in text.splitlines():
        if found := EPOCH.search(line):
            epoch = int(found.group(1))
            while lines and next(reversed(lines)) > epoch:
                lines.popitem()
            lines.setdefault(epoch, []).append(line)
    return "\n".join(line for of_epoch in lines.values() for line in of_epoch)


def read_valid_curve(path: Path) -> Dict[int, float]:
    """Validation perplexity by epoch of the last run.

    Raises:
        UserError: if the log holds none.
        OSError: if there is no log.
    """
    curve = _read_curve(VALIDATION, path)
    if not curve:
        raise UserError(
            f"{path} holds no validation: log with --log-format simple, or wait for that of the first epoch"
        )
    return curve


def read_train_curve(path: Path) -> Dict[int, float]:
    """Training perplexity by epoch of the last run: the mean over the updates of the epoch, with dropout.

    Unfinished epochs have none.

    Raises:
        UserError: if the log holds none.
        OSError: if there is no log.
    """
    curve = _read_curve(TRAINING, path)
    if not curve:
        raise UserError(f"{path} holds no training perplexity: the criterion logs none, or no epoch was finished")
    return curve


def _read_curve(line: "re.Pattern[str]", path: Path) -> Dict[int, float]:
    """Figures by epoch. ``line`` captures both."""
    return {int(epoch): float(figure) for epoch, figure in line.findall(lines_of_epochs(_read_last_run(path)))}


def read_score_curves(path: Path) -> Dict[str, Dict[int, float]]:
    """Scores of decoded validation sets by metric and epoch, as ``--task scored_translation`` logs them.

    Metrics have the names of ``--eval-scorer``. Empty if nothing was decoded. The scores are those of the last run.

    Raises:
        OSError: if there is no log.
    """
    curves: Dict[str, Dict[int, float]] = {}
    for epoch, line in VALIDATION_LINE.findall(lines_of_epochs(_read_last_run(path))):
        for name, score in VALIDATION_SCORE.findall(line):
            curves.setdefault(name, {})[int(epoch)] = float(score)
    return curves


def holds_validation(path: Path, *, num_updates: int, metric: str, value: float) -> bool:
    """Whether the last run of a log had a value of a metric after a number of updates.

    True if the log has no validation with that metric and a number of updates.

    Raises:
        OSError: if there is no log.
    """
    of_metric = re.compile(rf"\| {re.escape(metric)} {NUMBER}")
    found = [
        (int(updates[1]), float(figure[1]))
        for _, line in VALIDATION_LINE.findall(_read_last_run(path))
        if (updates := NUM_UPDATES.search(line)) and (figure := of_metric.search(line))
    ]
    # fairseq writes six digits
    return not found or any(
        updates == num_updates
        and (math.isclose(figure, value, rel_tol=1e-5) or math.isnan(figure) and math.isnan(value))
        for updates, figure in found
    )


def read_speeds(text: str) -> List[float]:
    """Tokens per second of each logged interval."""
    return [float(wps) for wps in SPEED.findall(text)]


def read_epoch_speeds(text: str) -> Dict[int, float]:
    """Mean tokens per second of each epoch. The time between an interruption and its resumption does not count."""
    return {int(epoch): float(wps) for epoch, wps in EPOCH_SPEED.findall(text)}


def read_median_speed(path: Path) -> float:
    """Median training speed of the last run in tokens per second.

    It is taken over intervals, or over epochs if no interval was logged.

    Raises:
        UserError: if the log holds none.
        OSError: if there is no log.
    """
    text = _read_last_run(path)
    speeds = read_speeds(text) or list(read_epoch_speeds(text).values())
    if not speeds:
        raise UserError(f"{path} holds no training speed: log with --log-format simple and a smaller --log-interval")
    return statistics.median(speeds)


def read_hours(path: Path) -> float:
    """Duration of the last run in hours, with validations and with all parts of a resumed run.

    fairseq counts from 0 at every start, so the parts are added.

    Raises:
        UserError: if the log has no times.
        OSError: if there is no log.
    """
    parts = [[float(wall) for wall in WALL.findall(text)] for text in _read_last_run(path).split(START)]
    if not any(parts):
        raise UserError(f"{path} holds no times: log with --log-format simple")
    # if the line of a start is missing, the time falls there
    ends = [one for seconds in parts for one, after in zip(seconds, [*seconds[1:], 0]) if after < one]
    return sum(ends) / 3600


def read_free_memory(text: str) -> List[float]:
    """Free memory of the GPU in GiB after each logged interval. Empty on a CPU."""
    return [float(gibibytes) for gibibytes in FREE_GIBIBYTES.findall(text)]


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """Log of a run, which may be unfinished.

    Attributes:
        valid_curve: validation perplexity by epoch.
        train_curve: training perplexity by finished epoch. Empty if the criterion logs none.
        score_curves: scores of the decoded validation set by metric and epoch. Empty if none were logged.
        words_per_second: median speed.
        hours: duration.
    """

    valid_curve: Dict[int, float]
    train_curve: Dict[int, float]
    score_curves: Dict[str, Dict[int, float]]
    words_per_second: float
    hours: float

    def figures(self) -> Dict[str, Any]:
        """Epochs, validation curves with their best points, speed and duration."""
        return {
            "epochs": max(self.valid_curve),
            "lowest_valid_perplexity": _best(min, self.valid_curve.values()),
            "valid_curve": self.valid_curve,
            "train_curve": self.train_curve,
            "highest_valid_scores": {metric: _best(max, curve.values()) for metric, curve in self.score_curves.items()},
            "score_curves": self.score_curves,
            "words_per_second": self.words_per_second,
            "hours": self.hours,
        }


def _best(choose: Callable[..., float], values: Iterable[float]) -> float:
    """The best value, without NaN."""
    return choose((value for value in values if not math.isnan(value)), default=math.nan)


def read_logged_training(save_dir: Path) -> LoggedTraining:
    """Read the log in the ``--save-dir`` of a run.

    Raises:
        UserError, OSError: if it is missing, or has no validation, speed or times.
    """
    log = find_log(save_dir)
    return LoggedTraining(
        valid_curve=read_valid_curve(log),
        train_curve=_read_curve(TRAINING, log),
        score_curves=read_score_curves(log),
        words_per_second=read_median_speed(log),
        hours=read_hours(log),
    )


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run.

    Attributes:
        name: name in tables. Runs of one name differ in their seed.
        checkpoint: path in the ``--save-dir``, beside ``train.log``. The file may be missing.
        data: directory with the data.
        model: model of the checkpoint, or None if it is missing.
        num_parameters: parameters of the model.
        num_learning_parameters: trained parameters of the model.
        seed: seed of the run.
        training: its log.
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
        """Directory of the checkpoint."""
        return self.checkpoint.parent

    def figures(self) -> Dict[str, Any]:
        """Figures of every report: name, parameters, seed, and those of the log."""
        return {
            "name": self.name,
            "checkpoint": None if self.model is None else self.checkpoint.name,
            "parameters": self.num_parameters,
            "learning_parameters": self.num_learning_parameters,
            "seed": self.seed,
            **self.training.figures(),
        }


def checkpoint_of(path: Path) -> Path:
    """Path of the checkpoint of a run, which is given by its ``--save-dir`` or by a checkpoint. It may not exist."""
    return path / "checkpoint_best.pt" if path.is_dir() else path


def read_run(name: str, path: Path, *, data: str) -> TrainedRun:
    """Read a finished run.

    If ``checkpoint_best.pt`` is missing, for example because only small files were copied from another machine, seed
    and size of the model come from the log.

    Args:
        name: name in tables.
        path: its ``--save-dir``, whose ``checkpoint_best.pt`` is taken, or a checkpoint in it.
        data: directory with the data.

    Raises:
        UserError, OSError: if the log or a given checkpoint is missing or cannot be read, or if they belong to
            different runs.
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
    """Check that the log has the validation after which the checkpoint was saved, if it was saved after one."""
    state, log = read_state(checkpoint), find_log(checkpoint.parent)
    value: Optional[float] = state["extra_state"].get("val_loss")
    metric: str = training_config(state).checkpoint.best_checkpoint_metric
    num_updates: int = state["optimizer_history"][-1]["num_updates"]
    if value is not None and not holds_validation(log, num_updates=num_updates, metric=metric, value=value):
        raise UserError(
            f"{log} is not the log of the training that left {checkpoint}: it has no validation with {metric} "
            f"{value:g} after update {num_updates:,}; bring the log of that training there"
        )


def _num_parameters(model: BaseFairseqModel) -> Tuple[int, int]:
    """All parameters, and the trained ones among them."""
    learning = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return sum(parameter.numel() for parameter in model.parameters()), sum(parameter.numel() for parameter in learning)


# Provenance: date, code and machine of a figure.

HERE = Path(__file__).resolve()


def describe_machine() -> str:
    """Processor with its vector extension, cores, GPU, and versions."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        extension = torch.backends.cpu.get_cpu_capability()
        bfloat16 = " with bfloat16" if has_native_bfloat16(torch.device("cpu")) else ""
        cpu = f"{models[0]} ({extension}{bfloat16}), {len(models)} cores" if models else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cpu}{gpu}; Python {platform.python_version()}, torch {torch.__version__}, fairseq {_fairseq_version()}"


@cache
def _fairseq_version() -> str:
    """Version of the distribution that provides fairseq."""
    distributions = packages_distributions().get("fairseq")
    return version(distributions[0]) if distributions else "without metadata"


def describe_code() -> str:
    """The commit of the running checkout, or the version of the installed package.

    "-dirty" marks uncommitted changes, except in results. A package installed inside a checkout counts as installed.
    """
    if not _git("ls-files", HERE.name):
        return f"fairseq-plugins {_installed_version()}"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    return f"commit {_git('describe', '--always', '--exclude', '*')}{'-dirty' if changed else ''}"


def _installed_version() -> str:
    try:
        return version("fairseq-plugins")
    except PackageNotFoundError:
        return "of unknown version"


def _git(*arguments: str) -> str:
    """Output of git. Empty outside a checkout or without git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return result.stdout.strip()


def provenance() -> Dict[str, str]:
    """Date, code and machine."""
    return {"date": date.today().isoformat(), "code": describe_code(), "machine": describe_machine()}


def with_origin(figures: Mapping[str, Any], *, command: str) -> Dict[str, Any]:
    """Figures, preceded by date, code, machine and the user's command line."""
    return {**provenance(), "command": command, **figures}


def describe_provenance() -> str:
    """Date, code and machine as one line."""
    return "{date}, {code}; {machine}.".format(**provenance())


def check_seeds(trainings: Iterable[Tuple[str, int, Path]]) -> None:
    """Check that no two runs have the same name and seed, because means are taken over the seeds of a name.

    Args:
        trainings: name, seed and ``--save-dir`` of each run.

    Raises:
        UserError: for the first two with equal name and seed.
    """
    first: Dict[Tuple[str, int], Path] = {}
    for name, seed, path in trainings:
        if (name, seed) in first:
            raise UserError(
                f"--path: {first[name, seed]} and {path} are both {name} with seed {seed}, and trainings of a name "
                "differ in their seed: leave one out, or give it another name"
            )
        first[name, seed] = path
