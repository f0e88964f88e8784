"""What ``fairseq-train --log-format simple`` logs: validations, speed, memory."""

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

NUMBER = r"(-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan))"
"""As fairseq prints one."""
EPOCH_NUMBER = r"epoch (\d{1,9})\b"
VALIDATION = re.compile(rf"\| valid \| {EPOCH_NUMBER} \|.*?\| ppl {NUMBER}")
TRAINING = re.compile(rf"\| train \| {EPOCH_NUMBER} \|.*?\| ppl {NUMBER}")
VALIDATION_LINE = re.compile(rf"\| valid \| {EPOCH_NUMBER} (\|.*)")
NUM_UPDATES = re.compile(r"\| num_updates (\d{1,15})\b")
VALIDATION_SCORE = re.compile(rf"\| ({'|'.join(CORPUS_METRICS)}) {NUMBER}")
SPEED = re.compile(rf"\| train_inner \|.*? wps={NUMBER}")
LOSS = re.compile(rf"\| train_inner \|.*? loss={NUMBER}")
LOSS_SCALE = re.compile(rf"\| train_inner \|.*? loss_scale={NUMBER}")
UPDATE_RATE = re.compile(rf"\| train_inner \|.*? ups={NUMBER}")
EPOCH_SPEED = re.compile(rf"\| train \| {EPOCH_NUMBER} \|.*? wps {NUMBER}")
WALL = re.compile(rf"\| train(?:_inner)? \|.*? \bwall[= ]{NUMBER}")
EPOCH = re.compile(rf"\| (?:train|train_inner|valid) \| {EPOCH_NUMBER}")
EPOCH_OF_INTERVAL = re.compile(rf"\| train_inner \| {EPOCH_NUMBER}:")
FREE_GIBIBYTES = re.compile(rf"gb_free={NUMBER}")
SEED = re.compile(r"'common': \{[^{}]*?'seed': (\d+)")
"""In what fairseq prints of the flags, once a start."""
PARAMETERS = re.compile(r"\| num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
"""In what fairseq prints of the model, once a start."""
START = "| fairseq.trainer | Preparing to load checkpoint "
"""In a line that fairseq logs once a start, whether there is a checkpoint or not."""
BEGINNINGS = (
    "| fairseq.trainer | No existing checkpoint found ",
    "| fairseq.checkpoint_utils | loading pretrained model from ",
)
"""In lines that fairseq logs where it goes on with no training of the folder."""


def find_log(save_dir: Path) -> Path:
    """The log in the ``--save-dir`` of a training.

    Raises:
        ValueError: if there is none.
    """
    log = save_dir / "train.log"
    if not log.is_file():
        raise ValueError(
            f"{log} does not exist: it is what a training prints, which recipes and the command train write there; "
            "by hand: mkdir -p SAVE_DIR; fairseq-train ... --log-format simple 2>&1 | tee -a SAVE_DIR/train.log"
        )
    return log


def read_log(path: Path) -> str:
    """A log as text; bytes that are no UTF-8, such as a full disk or a broken terminal leaves, say nothing.

    Raises:
        OSError: if there is no log.
    """
    return path.read_text(encoding="utf-8", errors="replace")


def _read_last_training(path: Path) -> str:
    """A log, or, where a training began anew in a folder of another, what came after that."""
    text = read_log(path)
    return text[_last_beginning(text) :]


def _last_beginning(text: str) -> int:
    """Where a training began anew for the last time; 0 where none did."""
    return max(0, *map(text.rfind, BEGINNINGS))


def read_seed(path: Path) -> int:
    """Seed of the training; of the last one that left anything, where one began anew.

    Raises:
        ValueError: if the log does not tell.
        OSError: if there is no log.
    """
    return int(_last_start(path, SEED, what="flags")[0])


def read_num_parameters(path: Path) -> Tuple[int, int]:
    """Parameters of the model, and how many of them learn; of the last training that left anything.

    Raises:
        ValueError: if the log does not tell.
        OSError: if there is no log.
    """
    total, learning = (
        int(number.replace(",", "")) for number in _last_start(path, PARAMETERS, what="size of the model")
    )
    return total, learning


def _last_start(path: Path, line: "re.Pattern[str]", *, what: str) -> Sequence[str]:
    """What the expression captures in what fairseq printed as it started the last training that left anything."""
    text = read_log(path)
    start = text[: _last_beginning(text) or None]
    found = [match.groups() for match in line.finditer(start, _last_beginning(start))]
    if not found:
        raise ValueError(
            f"{path} holds no {what}, which fairseq-train prints as it starts: wait until it has, or keep all that it "
            "prints"
        )
    return found[-1]


def lines_of_epochs(text: str) -> str:
    """The lines of training and validation; where epochs begin again, without the later ones of before."""
    lines: Dict[int, List[str]] = {}  # its epochs ascend
    for line in text.splitlines():
        if found := EPOCH.search(line):
            epoch = int(found.group(1))
            while lines and next(reversed(lines)) > epoch:
                lines.popitem()
            lines.setdefault(epoch, []).append(line)
    return "\n".join(line for of_epoch in lines.values() for line in of_epoch)


def read_valid_curve(path: Path) -> Dict[int, float]:
    """Validation perplexity by epoch; where epochs begin again, of the last training.

    Raises:
        ValueError: if the log holds none.
        OSError: if there is no log.
    """
    curve = _read_curve(VALIDATION, path)
    if not curve:
        raise ValueError(
            f"{path} holds no validation: log with --log-format simple, or wait for that of the first epoch"
        )
    return curve


def read_train_curve(path: Path) -> Dict[int, float]:
    """Training perplexity by epoch, the mean over its updates, as the criterion has it: with dropout.

    Where epochs begin again, it is of the last training; an epoch that was not finished has none.

    Raises:
        ValueError: if the log holds none.
        OSError: if there is no log.
    """
    curve = _read_curve(TRAINING, path)
    if not curve:
        raise ValueError(f"{path} holds no training perplexity: the criterion logs none, or no epoch was finished")
    return curve


def _read_curve(line: "re.Pattern[str]", path: Path) -> Dict[int, float]:
    """A figure by epoch, both of which the expression for a line captures."""
    return {int(epoch): float(figure) for epoch, figure in line.findall(lines_of_epochs(_read_last_training(path)))}


def read_score_curves(path: Path) -> Dict[str, Dict[int, float]]:
    """Scores of decoded validation sets by metric, as ``--task scored_translation`` logs them, each by epoch.

    The names are those of ``--eval-scorer``. It is empty where nothing was decoded; where epochs begin again, it is of
    the last training.

    Raises:
        OSError: if there is no log.
    """
    curves: Dict[str, Dict[int, float]] = {}
    for epoch, line in VALIDATION_LINE.findall(lines_of_epochs(_read_last_training(path))):
        for name, score in VALIDATION_SCORE.findall(line):
            curves.setdefault(name, {})[int(epoch)] = float(score)
    return curves


def holds_validation(path: Path, *, num_updates: int, metric: str, value: float) -> bool:
    """Whether the last training of a log had that value of a metric after so many updates.

    A log that tells the updates of no validation with that metric is taken to.

    Raises:
        OSError: if there is no log.
    """
    of_metric = re.compile(rf"\| {re.escape(metric)} {NUMBER}")
    found = [
        (int(updates[1]), float(figure[1]))
        for _, line in VALIDATION_LINE.findall(_read_last_training(path))
        if (updates := NUM_UPDATES.search(line)) and (figure := of_metric.search(line))
    ]
    # fairseq writes six digits
    return not found or any(
        updates == num_updates
        and (math.isclose(figure, value, rel_tol=1e-5) or math.isnan(figure) and math.isnan(value))
        for updates, figure in found
    )


def read_speeds(text: str) -> List[float]:
    """Speed of each logged interval, in tokens per second."""
    return [float(wps) for wps in SPEED.findall(text)]


def read_update_rates(text: str) -> List[float]:
    """Updates per second of each logged interval."""
    return [float(ups) for ups in UPDATE_RATE.findall(text)]


def read_epoch_speeds(text: str) -> Dict[int, float]:
    """Mean speed of each epoch in tokens per second; where it was resumed, of all of it without the time between."""
    return {int(epoch): float(wps) for epoch, wps in EPOCH_SPEED.findall(text)}


def intervals_by_epoch(text: str) -> Dict[int, str]:
    """The lines of the logged intervals of each epoch, for the other functions to read."""
    lines: Dict[int, List[str]] = {}
    for line in text.splitlines():
        if found := EPOCH_OF_INTERVAL.search(line):
            lines.setdefault(int(found.group(1)), []).append(line)
    return {epoch: "\n".join(of_epoch) for epoch, of_epoch in lines.items()}


def read_losses(text: str) -> List[float]:
    """Training loss of each logged interval, as it is logged; it may be infinite or no number."""
    return [float(loss) for loss in LOSS.findall(text)]


def read_loss_scales(text: str) -> List[float]:
    """Scale of the gradients after each logged interval; empty where they are not scaled."""
    return [float(scale) for scale in LOSS_SCALE.findall(text)]


def read_median_speed(path: Path) -> float:
    """Median training speed in tokens per second, of intervals, or of epochs where no interval was logged.

    It is that of the last training where one began anew.

    Raises:
        ValueError: if the log holds none.
        OSError: if there is no log.
    """
    text = _read_last_training(path)
    speeds = read_speeds(text) or list(read_epoch_speeds(text).values())
    if not speeds:
        raise ValueError(f"{path} holds no training speed: log with --log-format simple and a smaller --log-interval")
    return statistics.median(speeds)


def read_hours(path: Path) -> float:
    """How long the training took, with its validations; what was done before it was stopped and resumed is added.

    Every start counts from 0, inside an epoch, too. It is the last training where one began anew.

    Raises:
        ValueError: if the log does not tell.
        OSError: if there is no log.
    """
    sittings = [[float(wall) for wall in WALL.findall(part)] for part in _read_last_training(path).split(START)]
    if not any(sittings):
        raise ValueError(f"{path} holds no times: log with --log-format simple")
    # where the line of a start is missing, the fall to a lower time tells it
    ends = [one for seconds in sittings for one, after in zip(seconds, [*seconds[1:], 0]) if after < one]
    return sum(ends) / 3600


def read_free_memory(text: str) -> List[float]:
    """Free memory of the GPU after each logged interval, in GiB; empty on a CPU."""
    return [float(gibibytes) for gibibytes in FREE_GIBIBYTES.findall(text)]


# What the log of a training says of it, finished or not.


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


# What a training by ``fairseq-train`` left in its ``--save-dir``.


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


# When, with which code and on what a figure was measured.


HERE = Path(__file__).resolve()


def describe_machine() -> str:
    """Processor, what it multiplies by, cores, GPU and versions."""
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
    """Of whatever distribution has fairseq."""
    distributions = packages_distributions().get("fairseq")
    return version(distributions[0]) if distributions else "without metadata"


def describe_code() -> str:
    """The commit of the checkout that runs, or the installed version of this package.

    A commit is marked "-dirty" where its code was changed. Results, which are written one after the other, are not its
    code. An installed package is no checkout, even where its folder lies within one.
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
    """What git prints; nothing outside a checkout or without git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return result.stdout.strip()


def provenance() -> Dict[str, str]:
    """Date, code and machine."""
    return {"date": date.today().isoformat(), "code": describe_code(), "machine": describe_machine()}


def with_origin(figures: Mapping[str, Any], *, command: str) -> Dict[str, Any]:
    """Figures after their date, code, machine and the command that was typed."""
    return {**provenance(), "command": command, **figures}


def describe_provenance() -> str:
    """Date, code and machine as one line."""
    return "{date}, {code}; {machine}.".format(**provenance())


# Seeds of trainings that are taken for draws of one system.


def check_seeds(trainings: Iterable[Tuple[str, int, Path]]) -> None:
    """Refuse two trainings of one name and seed, over which no mean can be taken.

    Args:
        trainings: name, seed and ``--save-dir`` of each.

    Raises:
        ValueError: for the first such two.
    """
    first: Dict[Tuple[str, int], Path] = {}
    for name, seed, path in trainings:
        if (name, seed) in first:
            raise ValueError(
                f"--path: {first[name, seed]} and {path} are both {name} with seed {seed}, and trainings of a name "
                "differ in their seed: leave one out, or give it another name"
            )
        first[name, seed] = path
