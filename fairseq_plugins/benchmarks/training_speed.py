"""Speed and memory of short trainings by ``fairseq-train``."""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

import torch
from tqdm import tqdm

from fairseq_plugins.flags.command import ProgramFailed
from fairseq_plugins.programs.host_program import run_host
from fairseq_plugins.recipes import Recipe, training_arguments
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.reports.training_log import read_free_memory, read_log, read_speeds, read_update_rates

NUM_INTERVALS = 5
"""Of a run that are logged; the first is left out."""


@dataclass(frozen=True)
class TrainingSpeed:
    """Of one system.

    Attributes:
        words_per_second: the median over the logged intervals of all its runs.
        peak_mib: the largest of its runs: resident memory of the process, or what it allocated on a GPU.
        updates_per_second: the median likewise; 0 where it is not known.
    """

    words_per_second: float
    peak_mib: float
    updates_per_second: float = 0.0


def train(arguments: Sequence[str], *, log: Path) -> float:
    """Run ``fairseq-train`` in a process of its own; return its peak resident memory in MiB.

    Raises:
        ProgramFailed: with the end of the log.
    """
    try:
        return run_host("train", arguments, log=log)
    except ProgramFailed as failure:
        raise ProgramFailed(f"fairseq-train {' '.join(arguments)} failed:\n{failure}") from failure


def measure_trainings(
    recipe: Recipe, systems: Sequence[str], *, data: str, num_updates: int, num_rounds: int, flags: Sequence[str] = ()
) -> Dict[str, TrainingSpeed]:
    """Speed and memory of systems, by their labels.

    Each trains for ``num_updates`` in a process of its own, in both orders by turns, with the machine otherwise idle.

    Args:
        recipe: that has the systems.
        systems: their names in the recipe.
        data: directory that data-prep wrote.
        num_updates: of a run.
        num_rounds: runs of each system.
        flags: more of ``fairseq-train``.

    Raises:
        ProgramFailed: if a training fails.
    """
    turns = [system for turn in range(num_rounds) for system in (systems if turn % 2 == 0 else systems[::-1])]
    speeds: Dict[str, List[float]] = {system: [] for system in systems}
    rates: Dict[str, List[float]] = {system: [] for system in systems}
    peaks: Dict[str, List[float]] = {system: [] for system in systems}
    for system in tqdm(turns, unit="run", disable=not sys.stderr.isatty()):
        with tempfile.TemporaryDirectory() as save_dir:
            limits = ["--max-update", str(num_updates), "--no-save", "--disable-validation"]
            logged = ["--log-interval", str(max(1, num_updates // NUM_INTERVALS))]
            more = [*limits, *logged, "--distributed-world-size", "1", *flags]
            arguments = training_arguments(recipe, system, data=data, save_dir=save_dir, seed=1, more=more)
            log = Path(save_dir) / "train.log"
            resident = train(arguments, log=log)
            text = read_log(log)
        speeds[system] += read_speeds(text)[1:]
        rates[system] += read_update_rates(text)[1:]
        peaks[system].append(allocated_mib(read_free_memory(text)) or resident)
    return {
        recipe.label(system): TrainingSpeed(
            statistics.median(speeds[system]), max(peaks[system]), statistics.median(rates[system])
        )
        for system in systems
    }


def allocated_mib(free_gibibytes: Sequence[float]) -> float:
    """The most memory of the GPU that was allocated, of what was free at times; 0 without any."""
    if not free_gibibytes:
        return 0
    return torch.cuda.get_device_properties(0).total_memory / 2**20 - 1024 * min(free_gibibytes)


def as_markdown(found: Mapping[str, TrainingSpeed]) -> str:
    """Speed and memory, and their ratios to the first training's.

    The host logs a GPU's memory in tenths of a GiB, so it is given no finer.
    """
    reference = next(iter(found.values()))
    rows = []
    for name, figure in found.items():
        speed = figure.words_per_second / reference.words_per_second
        rows.append(
            (
                name,
                f"{figure.words_per_second:,.0f}",
                f"{speed:.2f}",
                f"{1 / speed:.2f}",
                f"{figure.peak_mib / 1024:,.1f} GiB",
                f"{figure.peak_mib / reference.peak_mib:.1f}",
            )
        )
    return as_table(["model", "words per second", "speed, ratio", "time, ratio", "peak memory", "ratio"], rows)


def products_as_markdown(products: Mapping[str, float], training: Mapping[str, TrainingSpeed]) -> str:
    """What the matrix products alone would allow, and the share that trainings reach."""
    rows = [
        (name, f"{speed:,.0f}", f"{training[name].words_per_second / speed:.2f}") for name, speed in products.items()
    ]
    return as_table(["model", "matrix products alone in float32, words per second", "share reached"], rows)
