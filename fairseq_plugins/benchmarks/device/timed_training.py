"""Training of a preset for so many minutes, which goes on when it is called again."""

import resource
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch

from fairseq_plugins.benchmarks.device.corpora import demo_data
from fairseq_plugins.benchmarks.device.device_facts import as_markdown, device_facts
from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.timed_systems import width_flags
from fairseq_plugins.benchmarks.output_layer import report_name
from fairseq_plugins.benchmarks.training import allocated_mib
from fairseq_plugins.command_line import ProgramFailed
from fairseq_plugins.processes import fairseq_command, run_logged, training_environment
from fairseq_plugins.recipes import find_recipe, training_arguments
from fairseq_plugins.reports.tables import Report, as_table
from fairseq_plugins.reports.training_log import (
    VALIDATION,
    intervals_by_epoch,
    lines_of_epochs,
    read_epoch_speeds,
    read_free_memory,
    read_log,
)

LOG_INTERVAL = 20


class TimedTraining:
    """A preset's training with checkpoints and ``train.log`` in ``save_dir``; fairseq resumes from the last one.

    Args:
        setting: where it trains, and on what; by default on the demo's sentences.
        arch: a system of the recipe presets.
        save_dir: None takes a folder in the report's.

    Raises:
        ValueError: if there is no such preset.
    """

    def __init__(self, setting: Setting, arch: str, *, save_dir: Optional[Path] = None):
        self.setting = setting
        self.arch = arch
        self.recipe = find_recipe("presets")
        self.recipe.system(arch)
        self.save_dir = save_dir or setting.folder / "checkpoints" / report_name(arch, *self._names_of_flags())

    def _names_of_flags(self) -> List[str]:
        return [flag.removeprefix("--") for flag in self.setting.flags]

    @property
    def log(self) -> Path:
        """What the training wrote in all calls."""
        return self.save_dir / "train.log"

    def seconds_so_far(self) -> float:
        """Training time of earlier calls, as the last checkpoint tells."""
        checkpoint = self.save_dir / "checkpoint_last.pt"
        if not checkpoint.exists():
            return 0.0
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        return float(state["extra_state"]["previous_training_time"])

    def run(self, *, minutes: float, command: str) -> str:
        """Train for that time from where the last call stopped, validate, save and report; return the tables.

        Raises:
            ProgramFailed: if the training fails.
        """
        self.save_dir.mkdir(parents=True, exist_ok=True)
        before = self.seconds_so_far()
        hours = (before + 60 * minutes) / 3600
        limits = ["--stop-time-hours", repr(hours), "--log-interval", str(LOG_INTERVAL)]
        flags = [*width_flags(self.setting, self.recipe, self.arch), *limits, *self.setting.device_flags]
        data, save_dir = self._data(), str(self.save_dir)
        arguments = training_arguments(self.recipe, self.arch, data=data, save_dir=save_dir, more=flags)
        status = run_logged(fairseq_command("train", arguments), log=self.log, environment=training_environment())
        if status != 0:
            raise ProgramFailed(f"fairseq-train ended with status {status}, see {self.log}")
        return self._report(command=command)

    def _data(self) -> str:
        if self.setting.data:
            return str(self.setting.data[0])
        return demo_data(self.setting, task=str(self.recipe.flags(self.arch)["task"]))

    def _report(self, *, command: str) -> str:
        facts = device_facts(self.setting)
        epochs = read_epochs(read_log(self.log))
        resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        minutes = self.seconds_so_far() / 60
        rows = [
            [epoch, _shown(found["valid_perplexity"], ".2f"), _shown(found["words_per_second"], ",.0f")]
            + [_shown(found["allocated_mib"] and found["allocated_mib"] / 1024, ".1f")]
            for epoch, found in epochs.items()
        ]
        text = [
            as_markdown(facts),
            f"Training of {self.arch} for {minutes:.1f} minutes so far.",
            as_table(["epoch", "valid perplexity", "words per second", "peak memory of the GPU, GiB"], rows),
            "Of an epoch that has not ended the figures are those where the last call stopped. Peak resident memory of "
            f"this call: {resident / 1024:.1f} GiB.",
        ]
        figures: Dict[str, Any] = {"device": facts, "arch": self.arch, "minutes": minutes, "epochs": epochs}
        report = Report(text="\n\n".join(text), figures={**figures, "resident_mib": resident}, command=command)
        return report.write(self.setting.folder, name=report_name("train", self.arch, *self._names_of_flags()))


def read_epochs(log: str) -> Dict[int, Dict[str, Optional[float]]]:
    """Of each epoch: the last validation perplexity, the speed, and the most memory allocated on a GPU.

    Where epochs begin again in the log, they are those of the last training.
    """
    log = lines_of_epochs(log)
    perplexities = {int(epoch): float(perplexity) for epoch, perplexity in VALIDATION.findall(log)}
    speeds, intervals = read_epoch_speeds(log), intervals_by_epoch(log)
    return {
        epoch: {
            "valid_perplexity": perplexities.get(epoch),
            "words_per_second": speeds.get(epoch),
            "allocated_mib": allocated_mib(read_free_memory(intervals.get(epoch, ""))) or None,
        }
        for epoch in sorted({*perplexities, *speeds, *intervals})
    }


def _shown(value: Optional[float], form: str) -> str:
    return "" if value is None else f"{value:{form}}"
