"""What ``fairseq-train --log-format simple`` logs: validations, speed, memory."""

import re
import statistics
from pathlib import Path
from typing import Dict, List

VALIDATION = re.compile(r"\| valid \| epoch (\d+) \|.*?\| ppl ([\d.]+)")
SPEED = re.compile(r"\| train_inner \|.*? wps=([\d.]+)")
FREE_GIBIBYTES = re.compile(r"gb_free=([\d.]+)")


def read_valid_curve(path: Path) -> Dict[int, float]:
    """Validation perplexity by epoch.

    Raises:
        ValueError: if the log holds none.
        OSError: if there is no log.
    """
    curve = {int(epoch): float(ppl) for epoch, ppl in VALIDATION.findall(path.read_text(encoding="utf-8"))}
    if not curve:
        raise ValueError(f"{path} holds no validation: log with --log-format simple")
    return curve


def read_speeds(text: str) -> List[float]:
    """Speed of each logged interval, in tokens per second."""
    return [float(wps) for wps in SPEED.findall(text)]


def read_median_speed(path: Path) -> float:
    """Median training speed in tokens per second.

    Raises:
        ValueError: if the log holds none.
        OSError: if there is no log.
    """
    speeds = read_speeds(path.read_text(encoding="utf-8"))
    if not speeds:
        raise ValueError(f"{path} holds no training speed: log with --log-format simple and a smaller --log-interval")
    return statistics.median(speeds)


def read_free_memory(text: str) -> List[float]:
    """Free memory of the GPU after each logged interval, in GiB; empty on a CPU."""
    return [float(gibibytes) for gibibytes in FREE_GIBIBYTES.findall(text)]
