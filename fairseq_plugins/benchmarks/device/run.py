"""Measuring the items of a step, as many as time allows."""

import sys
import time
from dataclasses import dataclass
from typing import List, Literal, Sequence

import torch
from tqdm import tqdm

from fairseq_plugins.benchmarks.device.record import Record, num_failed
from fairseq_plugins.benchmarks.device.step import Figures, Item, Step

SECONDS_BETWEEN_WRITES = 5.0
MAX_LINE_LENGTH = 160
"""Of an error, of which the first and the last line are kept."""


@dataclass(frozen=True)
class StepResult:
    """How a call ended.

    Attributes:
        text: the tables.
        num_failed: items of the record that failed.
        num_left: items that were asked for and have not been tried, for want of time or of a working device.
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

    An item that fails is kept with its error, and the next one follows. After ``minutes`` no item is begun, nor after
    an error that has left the GPU unusable.

    Args:
        step: whose items are measured.
        command: what was typed.
        minutes: of this call.
        kept: what is done with items of an earlier call.
        only: parts of names; by default all items.

    Raises:
        ValueError: if no name has such a part, or the folder holds another file in the record's place.
    """
    record = Record(step, command=command)
    chosen = [item for item in step.items() if not only or any(part in item.name for part in only)]
    if not chosen:
        raise ValueError(f"--only {' '.join(only)}: no item of {step.name} has such a name")
    if kept == "measured again":
        for item in chosen:
            record.found.pop(item.name, None)
    todo = [item for item in chosen if item.name not in record.found]
    todo += [item for item in chosen if "error" in record.found.get(item.name, {})]
    left = _measure(todo, record, deadline=time.monotonic() + 60 * minutes)
    return StepResult(text=record.write(), num_failed=num_failed(record.found), num_left=len(left))


def _measure(items: Sequence[Item], record: Record, *, deadline: float) -> List[Item]:
    """Measure items into the record until the time is over; the items that were not begun."""
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
    except Exception as error:  # whatever it is, it is the item's result
        lines = str(error).strip().splitlines() or [""]
        told = " ... ".join(dict.fromkeys(line[:MAX_LINE_LENGTH] for line in (lines[0], lines[-1])))
        return {"error": f"{type(error).__name__}: {told}"}


def _device_works() -> bool:
    """Whether the GPU still computes; an illegal access ends that for the whole process."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
