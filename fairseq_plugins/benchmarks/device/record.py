"""Steps of the report on a device, and the record of their items, from which a later call resumes."""

import hashlib
import json
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, List, Literal, Mapping, Sequence

import torch
from tqdm import tqdm

import fairseq_plugins
from fairseq_plugins.benchmarks.device.setting import Setting, device_facts, facts_table
from fairseq_plugins.benchmarks.output_layer import report_name
from fairseq_plugins.options import UserError
from fairseq_plugins.reports.tables import Report, as_table
from fairseq_plugins.reports.training_log import describe_code, describe_machine

Figures = Dict[str, Any]
"""Results of an item by name. ``error`` says why it failed, ``skipped`` why it cannot be measured here."""


@dataclass(frozen=True)
class Item:
    """One measurement of a step.

    Attributes:
        name: unique within the step.
        measure: runs the measurement. An exception becomes the item's error.
    """

    name: str
    measure: Callable[[], Figures]


class Step(ABC):
    """A list of items, with tables of their results.

    Attributes:
        name: as the user types it.
    """

    name: ClassVar[str]

    def __init__(self, setting: Setting):
        self.setting = setting

    @property
    def report_name(self) -> str:
        """Name of the step's files without suffix. It depends on the user's flags of ``fairseq-train``."""
        return report_name(self.name, *(flag.removeprefix("--") for flag in self.setting.flags))

    @abstractmethod
    def items(self) -> Sequence[Item]:
        """All items in order."""

    @abstractmethod
    def tables(self, found: Mapping[str, Figures]) -> str:
        """Tables in Markdown of the measured items."""


def state_of(figures: Figures) -> str:
    """State of an item for a table, with the reason if it failed or was not run."""
    if "error" in figures:
        return f"FAILED: {figures['error']}"
    return f"not run: {figures['skipped']}" if "skipped" in figures else "passed"


def failed_table(found: Mapping[str, Figures]) -> List[str]:
    """A table of the items that failed or were not run, as a list of one. Empty if there are none."""
    rows = [[name, state_of(figures)] for name, figures in found.items() if {"error", "skipped"} & set(figures)]
    return [as_table(["not measured", "why"], rows)] if rows else []


class Record:
    """Figures of a step's items in ``FOLDER/STEP.json``, and tables of them in ``FOLDER/STEP.md``.

    Figures measured with other code, data or flags, or on another machine or device, are ignored. The next write
    replaces them.

    Args:
        step: the step whose items are recorded.
        command: command line of the user.
    """

    def __init__(self, step: Step, *, command: str):
        self._step = step
        self._command = command
        self.facts = device_facts(step.setting)
        self._identity: Dict[str, Any] = {
            "measured_with": {"code": describe_code(), "source": source_digest(), "machine": describe_machine()},
            "device": self.facts,
            "data": [str(path.resolve()) for path in step.setting.data],
            "flags": list(step.setting.flags),
        }
        self.found: Dict[str, Figures] = self._read()

    @property
    def path(self) -> Path:
        """The JSON file."""
        return self._step.setting.folder / f"{self._step.report_name}.json"

    def _read(self) -> Dict[str, Figures]:
        """Items that an earlier call recorded under the same conditions.

        Raises:
            UserError: if the file is not a record of this step.
        """
        if not self.path.exists():
            return {}
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            same = all(kept[name] == value for name, value in self._identity.items())
            return kept["items"] if same else {}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path} is no report of {self._step.name}: move it away") from error

    def write(self) -> str:
        """Write both files and return the tables."""
        order = [item.name for item in self._step.items()]
        self.found = {name: self.found[name] for name in order if name in self.found}
        num_missing = len(order) - len(self.found)
        remark = f"{num_missing} items are not measured yet." if num_missing else ""
        report = Report(
            text="\n\n".join([facts_table(self.facts), self._step.tables(self.found), remark]).rstrip(),
            figures={**self._identity, "items": self.found},
            command=self._command,
        )
        return report.write(self._step.setting.folder, name=self._step.report_name)


def source_digest(folder: Path = Path(fairseq_plugins.__file__).parent) -> str:
    """Digest of the package's source. It changes with uncommitted changes and in installed packages, too."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


SECONDS_BETWEEN_WRITES = 5.0
MAX_LINE_LENGTH = 160
"""Characters that are kept of the first and of the last line of an error."""


@dataclass(frozen=True)
class StepResult:
    """Result of a call.

    Attributes:
        text: tables of the record.
        num_failed: failed items of the record.
        num_left: requested items that were not tried, because time was over or the device stopped working.
    """

    text: str
    num_failed: int
    num_left: int


def run_step(
    step: Step,
    *,
    command: str,
    minutes: float,
    kept: Literal["used", "measured again"] = "used",
    only: Sequence[str] = (),
) -> StepResult:
    """Measure the items that the step's record lacks, then those that failed in an earlier call.

    The error of an item that fails is recorded, and the next item follows. No item is begun after ``minutes``, or after
    an error that left the GPU unusable.

    Args:
        step: the step to run.
        command: command line of the user.
        minutes: time limit of this call.
        kept: whether results of an earlier call are used or measured again.
        only: parts of item names; items with other names are left out. Empty takes all items.

    Raises:
        UserError: if no item matches ``only``, or another file is in the record's place.
    """
    record = Record(step, command=command)
    chosen = [item for item in step.items() if not only or any(part in item.name for part in only)]
    if not chosen:
        raise UserError(f"--only {' '.join(only)}: no item of {step.name} has such a name")
    if kept == "measured again":
        for item in chosen:
            record.found.pop(item.name, None)
    todo = [item for item in chosen if item.name not in record.found]
    todo += [item for item in chosen if "error" in record.found.get(item.name, {})]
    left = _measure(todo, record, deadline=time.monotonic() + 60 * minutes)
    num_failed = sum("error" in figures for figures in record.found.values())
    return StepResult(text=record.write(), num_failed=num_failed, num_left=len(left))


def _measure(items: Sequence[Item], record: Record, *, deadline: float) -> List[Item]:
    """Measure items into the record until time is over. Returns the items that were not begun."""
    written = time.monotonic()
    progress = tqdm(items, unit="item", disable=not sys.stderr.isatty())
    try:
        for place, item in enumerate(progress):
            if time.monotonic() > deadline:
                return list(items[place:])
            progress.set_description(item.name)
            record.found[item.name] = _figures(item)
            if "error" in record.found[item.name] and not _device_works():
                return list(items[place + 1 :])
            if time.monotonic() - written > SECONDS_BETWEEN_WRITES:
                record.write()
                written = time.monotonic()
    except BaseException:
        record.write()
        raise
    return []


def _figures(item: Item) -> Figures:
    try:
        return item.measure()
    except Exception as error:  # any error is the item's result
        lines = str(error).strip().splitlines() or [""]
        message = " ... ".join(dict.fromkeys(line[:MAX_LINE_LENGTH] for line in (lines[0], lines[-1])))
        return {"error": f"{type(error).__name__}: {message}"}


def _device_works() -> bool:
    """Whether the GPU still computes. After an illegal memory access it does not, for the whole process."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
