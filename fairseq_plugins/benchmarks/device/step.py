"""A step of the report: items that are measured one by one, and tables of what was found."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Sequence

from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.output_layer import report_name
from fairseq_plugins.reports.tables import as_table

Figures = Dict[str, Any]
"""What was found of an item, by name; ``error`` where it failed, ``skipped`` where it cannot be measured here."""


@dataclass(frozen=True)
class Item:
    """What is measured at once.

    Attributes:
        name: within the step.
        measure: does the work; what it raises is the item's error.
    """

    name: str
    measure: Callable[[], Figures]


class Step(ABC):
    """Items and their tables.

    Attributes:
        name: as the user types it.
    """

    name: ClassVar[str]

    def __init__(self, setting: Setting):
        self.setting = setting

    @property
    def report_name(self) -> str:
        """Name of the step's files, without suffix; with other flags of ``fairseq-train`` they are others."""
        return report_name(self.name, *(flag.removeprefix("--") for flag in self.setting.flags))

    @abstractmethod
    def items(self) -> Sequence[Item]:
        """All items in their order."""

    @abstractmethod
    def tables(self, found: Mapping[str, Figures]) -> str:
        """Tables in Markdown of the items that were measured."""


def state_of(figures: Figures) -> str:
    """One word and, where there is one, the reason, for a table."""
    if "error" in figures:
        return f"FAILED: {figures['error']}"
    return f"not run: {figures['skipped']}" if "skipped" in figures else "passed"


def failed_table(found: Mapping[str, Figures]) -> List[str]:
    """A table with name and state of the items that have no figures, if there are any."""
    rows = [[name, state_of(figures)] for name, figures in found.items() if {"error", "skipped"} & set(figures)]
    return [as_table(["not measured", "why"], rows)] if rows else []
