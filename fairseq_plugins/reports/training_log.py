"""What ``fairseq-train --log-format simple`` logs: validations, speed, memory."""

import math
import re
import statistics
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from fairseq_plugins.scoring.corpus_metrics import CORPUS_METRICS

NUMBER = r"(-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan))"
"""As the host prints one."""
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
"""In what the host prints of the flags, once a start."""
PARAMETERS = re.compile(r"\| num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
"""In what the host prints of the model, once a start."""
START = "| fairseq.trainer | Preparing to load checkpoint "
"""In a line that the host logs once a start, whether there is a checkpoint or not."""
BEGINNINGS = (
    "| fairseq.trainer | No existing checkpoint found ",
    "| fairseq.checkpoint_utils | loading pretrained model from ",
)
"""In lines that the host logs where it goes on with no training of the folder."""


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
    """What the expression captures in what the host printed as it started the last training that left anything."""
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
