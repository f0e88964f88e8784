"""Speed and memory of short trainings by fairseq-train, for the benchmarks."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Dict, List

import torch
from comparison import SPEED
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
FREE_GIBIBYTES = re.compile(r"gb_free=([\d.]+)")

Command = Callable[[str, List[str]], List[str]]
"""Command line of a training, given its save directory and more flags; it writes train.log there."""


def fairseq_train(data: str, flags: str) -> Command:
    """A training by fairseq-train with flags as they stand on a command line."""
    train = f'fairseq-train "$0" --user-dir "{ROOT}/fairseq_plugins" --save-dir "$1" --log-format simple'
    return lambda save_dir, more: [
        *("bash", "-c", f'{train} {flags} "${{@:2}}" > "$1/train.log" 2>&1', data, save_dir),
        *more,
    ]


def recipe(path: str, data: str, system: str) -> Command:
    """A training by a recipe of scripts/recipes, with seed 1."""
    script = str(ROOT / "scripts/recipes" / path)
    return lambda save_dir, more: ["bash", script, system, "1", data, save_dir, *more]


def measure_trainings(
    commands: Dict[str, Command], *, num_updates: int, num_rounds: int, flags: List[str]
) -> Dict[str, Dict[str, float]]:
    """Median tokens per second and peak memory in MiB of each training.

    Each runs for ``num_updates`` in a process of its own, in both orders by turns. The first of five logged
    intervals of a run is left out. Memory is the process' resident memory, or what it allocated on a GPU.
    """
    names = list(commands)
    turns = [name for turn in range(num_rounds) for name in (names if turn % 2 == 0 else names[::-1])]
    runs: Dict[str, List[Dict]] = {name: [] for name in names}
    for name in tqdm(turns, unit="run", disable=not sys.stderr.isatty()):
        runs[name].append(_measure(name, commands[name], num_updates=num_updates, flags=flags))
    return {
        name: {
            "words_per_second": statistics.median(speed for run in results for speed in run["speeds"]),
            "peak_mib": max(run["peak_mib"] for run in results),
        }
        for name, results in runs.items()
    }


def _measure(name: str, command: Command, *, num_updates: int, flags: List[str]) -> Dict:
    stop = [
        "--max-update",
        num_updates,
        "--no-save",
        "--disable-validation",
        "--log-interval",
        max(1, num_updates // 5),
    ]
    more = [str(flag) for flag in (*stop, "--distributed-world-size", 1, *flags)]
    with tempfile.TemporaryDirectory() as save_dir:
        process = subprocess.Popen(command(save_dir, more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        path = Path(save_dir) / "train.log"
        log = path.read_text(encoding="utf-8") if path.exists() else "no log: is fairseq-train on the PATH?"
    if status != 0:
        raise SystemExit(f"the training of {name} failed: {log[-500:]}")
    peak_mib = usage.ru_maxrss / 1024
    free = [float(gibibytes) for gibibytes in FREE_GIBIBYTES.findall(log)]
    if free:
        peak_mib = torch.cuda.get_device_properties(0).total_memory / 2**20 - 1024 * min(free)
    return {"speeds": [float(wps) for wps in SPEED.findall(log)][1:], "peak_mib": peak_mib}


def as_markdown(figures: Dict[str, Dict[str, float]]) -> str:
    """Speed and memory, and their ratios to the first training's.

    The host logs a GPU's memory in tenths of a GiB, so it is given no finer.
    """
    reference = next(iter(figures.values()))
    lines = [
        "| model | words per second | speed, ratio | time, ratio | peak memory | ratio |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, figure in figures.items():
        speed = figure["words_per_second"] / reference["words_per_second"]
        lines.append(
            f"| {name} | {figure['words_per_second']:,.0f} | {speed:.2f} | {1 / speed:.2f} | "
            f"{figure['peak_mib'] / 1024:,.1f} GiB | {figure['peak_mib'] / reference['peak_mib']:.1f} |"
        )
    return "\n".join(lines) + "\n"
