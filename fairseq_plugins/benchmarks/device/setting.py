"""Where and on what a step runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import List, Literal, Sequence

from fairseq_plugins.benchmarks.device.scale import FULL, TOY, Scale


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all steps are told.

    Attributes:
        device: "cuda" or "cpu".
        folder: of the report; data that are made lie in it, too.
        data: binarised corpora that the user gave.
        flags: of ``fairseq-train`` that the user gave.
    """

    device: Literal["cpu", "cuda"]
    folder: Path
    data: Sequence[Path] = ()
    flags: Sequence[str] = ()

    @property
    def scale(self) -> Scale:
        """Full size on a GPU, toy size on a CPU."""
        return FULL if self.device == "cuda" else TOY

    @property
    def device_flags(self) -> List[str]:
        """Flags of fairseq's programs for this device, and the user's."""
        return [*(["--cpu"] if self.device == "cpu" else []), *self.flags]
